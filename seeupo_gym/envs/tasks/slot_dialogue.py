"""SlotDialogue: book a table for a user with an agenda, over a line that garbles what the user says."""

from __future__ import annotations

from functools import partial

from seeupo_gym.envs.task import MaskedTaskEnv
from seeupo_gym.envs.tasks.slot_dialogue_dynamics import SlotDialogue


class SlotDialogueEnv(MaskedTaskEnv):
    """
    ## Description
    The agent books a table for a simulated user, after Schatzmann et al., "Agenda-based user simulation for
    bootstrapping a POMDP dialogue system" (NAACL 2007). The user has a goal, which is one value for each slot, and an
    agenda: the slots not stated yet, in an order of the user's own, and questions to ask before accepting an offer. The
    line is bad: the agent hears some values wrong, and some replies not at all.

    | level | venue | booking | values of a slot | questions | turns | wrong | lost | adds | changes |
    | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
    | easy | food, area | people | 3 | none | 12 | 0.2 | 0 | 0.5 | 0 |
    | medium | food, area | time, people | 4 | 1 of 2 | 24 | 0.25 | 0.1 | 0.3 | 0.02 |
    | hard | food, area, price | time, people | 5 | 2 of 3 | 36 | 0.3 | 0.15 | 0.2 | 0.05 |

    The user opens with the first slot of the agenda, and then replies to what the agent does:

    - *request* of a slot: the user states its value.
    - *confirm* of the value last heard of a slot: the user says "yes", or says "no" and states the value.
    - *offer* of a venue that has the values last heard: if one of them is not what the user wants, the user says "no"
      and states the value of the first such slot. Otherwise the user asks the next question, or accepts if there is
      none left. The offer becomes void when a new value is heard of one of its slots, or a "no" about it.
    - *answer* to a question: if it is the question asked, the question is settled, and the user goes on as after an
      offer. Otherwise the user asks it again.
    - *apologise*: the user accepts the apology.
    - *book*: the user takes the table, with the values last heard of all slots.

    After a request, a confirmation or an apology the user adds the next slot of the agenda with probability "adds".
    Each value and each question is heard as another one with probability "wrong". Each reply, but for the opening and
    the last one, is not heard at all with probability "lost". The user does not notice either. A "yes" or "no" that is
    heard is right.

    The user starts with a patience from 4 to 6. It falls by 1 when the user has to state a value again (by 2 after an
    offer), and by 1 after an answer to a question that was not asked. An apology gives 1 back if any was lost since the
    last apology. At 0 the user hangs up. From the replies that are not lost the agent hears whether the user is annoyed
    (has lost patience since the last apology), and whether the user is impatient (2 left) or about to hang up (1 left).

    Once in an episode the user may change their mind. In each turn with an accepted action other than "book", one slot
    and another value of it are drawn with probability "changes". If the slot has been stated before, the user wants
    the new value from then on, and the slot goes back on the agenda. The user says so when the slot is stated next,
    which costs no patience.

    ## Action Space
    ``Discrete(2 * slots + items + 3)``, in this order: request of each slot, confirm of each slot, offer, answer for
    each item (phone, address, parking, as far as the level has them), book, apologise; 9 (easy), 13 (medium), 16
    (hard) actions.

    ``action_masks()`` tells which are accepted now: requests always; confirm of a slot after a value of it was heard;
    offer after values of all slots of the venue were heard; answers after a question, until it is answered; book after
    an offer was accepted and values of all slots were heard; apologise while the user sounds annoyed. An action that is
    not accepted costs the turn and changes nothing else.

    ## Observation Space
    ``Box(0, 1, (d,))``: what the agent has heard so far. In this order:

    - for each slot, the value last heard (one-hot, zeros if none)
    - for each slot and value, whether the user denied it (since the last change of mind about the slot, and not agreed
      to since then)
    - for each slot, whether its value was heard twice in a row
    - for each slot, whether the user agreed to its value (in a confirmation, or to an offer)
    - for each slot, the turns since its value was last heard or agreed to, as a fraction of all turns
    - the question to answer (one-hot over the items, zeros if none)
    - the last reply (one-hot: value stated, yes, no, changed mind, question, offer accepted, apology accepted, not
      heard, action not accepted; zeros at the end)
    - the tone of the user (one-hot: patient, impatient, about to hang up; then 1 if annoyed)
    - whether a change of mind was heard
    - whether the offer is accepted
    - the turn as a fraction of all turns

    The goal, the agenda and the patience are hidden. ``d`` is 43 (easy), 62 (medium), 84 (hard).

    ## Rewards
    At the end: 1 if all values booked are those that the user wants now, else 0.5 times the fraction of slots that are
    right; minus 0.01 for each turn taken. Without a booking it is -0.01 times the turns of the level, whenever the
    dialogue ended. ``info["is_success"]`` tells whether all values booked are right.

    ## Starting State
    Drawn from the seed: the goal, the order of the agenda, the questions, the patience, and how the opening is heard.
    Replies that are lost, heard wrong or added to, and changes of mind, depend on the seed and the turn.

    ## Episode End
    The episode terminates after an accepted "book", when the user hangs up, and after the last turn of the level.

    ## Arguments
    - ``level`` (default ``"easy"``): ``"easy"``, ``"medium"`` or ``"hard"``
    - ``render_mode``: ``"ansi"`` for a transcript

    ## Expert
    It uses only what the agent observes. A slot is open unless its value was agreed to or heard twice in a row. The
    first rule counts that applies:

    1. answer the question that was heard
    2. apologise to an annoyed user who is not patient, or while two slots or more are open, unless only the booking is
       left
    3. at medium and hard, confirm an open value of the venue
    4. request a slot of which nothing was heard, or whose value was denied
    5. offer, unless an offer is accepted
    6. confirm an open value of the booking
    7. book

    It is good, but not optimal.

    ## Version History
    - v0: first version
    """

    def __init__(self, level: str = "easy", render_mode: str | None = None) -> None:
        super().__init__(partial(SlotDialogue, level=level), render_mode)
