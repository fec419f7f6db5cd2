"""SlotDialogue: book a table for a user with an agenda, over a line that garbles what the user says."""

from __future__ import annotations

from functools import partial

from seeupo_gym.envs.task import MaskedTaskEnv
from seeupo_gym.envs.tasks.slot_dialogue_dynamics import SlotDialogue


class SlotDialogueEnv(MaskedTaskEnv):
    """
    ## Description
    The agent books a table for a simulated user, after Schatzmann et al., "Agenda-based user simulation for
    bootstrapping a POMDP dialogue system" (NAACL 2007). The user has a goal, one value for each slot, and an agenda:
    the slots not stated yet, in an order of their own, and questions to ask before an offer is accepted. The line is
    bad: the agent hears some values wrong, and some replies not at all.

    | level | venue | booking | values of a slot | questions | turns | wrong | lost | adds | changes |
    | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
    | easy | food, area | people | 3 | none | 12 | 0.2 | 0 | 0.5 | 0 |
    | medium | food, area | time, people | 4 | 1 of 2 | 24 | 0.25 | 0.1 | 0.3 | 0.02 |
    | hard | food, area, price | time, people | 5 | 2 of 3 | 36 | 0.3 | 0.15 | 0.2 | 0.05 |

    The user opens with the first slot of the agenda, and then replies to what the agent does:

    - *request* of a slot: states its value.
    - *confirm* of the value last heard of a slot: "yes", or "no" and states the value.
    - *offer* of a venue that has the values last heard: if one of them is not what the user wants, "no" and states the
      value of the first such slot; else asks the next question, and accepts after the last one. A new value heard
      of one of these slots, or a "no" about it, makes the offer void.
    - *answer* to a question: like an offer if it is the question asked, which is then settled; else the user asks
      it again.
    - *apologise*: accepts it.
    - *book*: takes the table, with the values last heard of all slots.

    After a request, a confirmation or an apology the user adds the next slot of the agenda with probability "adds".
    Each value and each question is heard as another one with probability "wrong", each reply not at all with
    probability "lost" (not the opening, and not the end); the user does not notice. A "yes" or "no" that is
    understood is right.

    The user has a patience from 4 to 6 at the start. Having to state a value again costs 1 of it (2 after an
    offer), and so does an answer to a question not asked; an apology gives 1 back if any was lost since the last
    one. At 0 the user hangs up. The agent hears, in the replies that are not lost, whether the user is annoyed (has
    lost patience since the last apology), and impatient (2 left) or about to hang up (1 left).

    Once in an episode the user may change their mind: with probability "changes" in each turn with an accepted
    action other than "book", one slot and another value of it are drawn, and if that slot has been stated, it is what
    the user wants from then on and goes back on the agenda. The user says so when the slot is stated next, and
    stating it then costs no patience.

    ## Action Space
    ``Discrete(2 * slots + items + 3)``, in this order: request of each slot, confirm of each slot, offer, answer for
    each item (phone, address, parking, as far as the level has them), book, apologise; 9 (easy), 13 (medium), 16
    (hard) actions.

    ``action_masks()`` tells which are accepted now: requests always, confirm of a slot after a value of it was heard,
    offer after values of all slots of the venue were heard, answers after a question until it is answered, book
    after an offer was accepted and values of all slots were heard, apologise while the user sounds annoyed. An
    action that is not accepted costs the turn and changes nothing else.

    ## Observation Space
    ``Box(0, 1, (d,))``, what the agent has heard so far. In this order: for each slot the value last heard (one-hot,
    zeros if none); for each slot and value whether the user denied it (since the last change of mind said about the
    slot, and not agreed to since); for each slot whether its value was heard twice in a row, whether the user agreed
    to it (in a confirmation, or to an offer), and the turns since one of these or since it was heard, as a fraction of
    all turns; the question to answer (one-hot over the items, zeros if none); the last reply (one-hot: value stated,
    yes, no, changed mind, question, offer accepted, apology accepted, not understood, action not accepted; zeros at
    the end); how the user sounds (one-hot: patient, impatient, about to hang up; then 1 if annoyed); whether a change
    of mind was heard; whether the offer is accepted; the turn as a fraction. Not visible are the goal, the agenda and
    the patience. ``d`` is 43 (easy), 62 (medium), 84 (hard).

    ## Rewards
    At the end, minus 0.01 a turn: 1 if the values booked are those the user wants now, else 0.5 times the fraction of
    slots that are right. Without a booking the reward is -0.01 times the turns of the level, whenever the dialogue
    ended. ``info["is_success"]`` tells whether all values booked are right.

    ## Starting State
    Drawn from the seed: the goal, the order of the agenda, the questions, the patience and how the opening is heard.
    What is lost, heard wrong or added, and changes of mind, depend on the seed and the turn.

    ## Episode End
    The episode terminates after an accepted "book", when the user hangs up, and after the last turn of the level.

    ## Arguments
    - ``level`` (default ``"easy"``): ``"easy"``, ``"medium"`` or ``"hard"``
    - ``render_mode``: ``"ansi"`` for a transcript

    ## Expert
    It uses what the agent observes and nothing else, by the first rule that applies: answer the question heard;
    apologise to an annoyed user who is not patient, or while two slots or more are open, unless only the booking is
    left; at medium and hard, confirm a value of the venue that is open; request a slot of which nothing was heard, or
    a value denied before; offer; confirm a value of the booking that is open; book. A slot is open unless its value
    was agreed to or heard twice. It is good, not optimal.

    ## Version History
    - v0: first version
    """

    def __init__(self, level: str = "easy", render_mode: str | None = None) -> None:
        super().__init__(partial(SlotDialogue, level=level), render_mode)
