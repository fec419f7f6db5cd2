"""WebNav in words: the transcript, and clicks as they are written."""

import gymnasium as gym
import pytest
from helpers.web_nav import ADD, BACK, CHECKOUT_BUTTON, HELP_LINK, ID, ORDER, click, make_task

from seeupo_gym.envs.messages import MessageError
from seeupo_gym.envs.tasks.web_nav_dynamics import NOT_LOADED


def test_transcript():
    env = gym.make(ID, render_mode="ansi")
    env.reset(seed=0)
    for action in [HELP_LINK, BACK, 0, 1, 0, BACK, 2, 0, ADD, CHECKOUT_BUTTON, 1, ORDER]:
        env.step(action)
    home = 'Page: Home\n[1] link "Jackets"\n[2] link "Coats"\n[3] link "Shirts"\n[4] link "Help"\n'
    jackets = (
        "Page: Jackets, page 1 of 1\n"
        '[1] link "Runa": cotton, EUR 127\n[2] link "Saga": wool, EUR 40\n[3] link "Alba": wool, EUR 72\n'
    )
    sold_out = (
        "Page: Saga jacket, wool, EUR 40\n"
        '[1] option "S" (not available)\n[2] option "M" (not available)\n[3] button "Add to cart" (not available)\n'
    )
    menu = 'Menu: "Back", "Home". In the cart: nothing. Clicks left: '
    assert env.render() == (
        'System: You order in a web shop. Write click "..." with the name or the number of an element of the page. '
        "The cart holds one item; to add one, choose its size first.\n"
        "User: Please order me a wool jacket in size S for at most EUR 80. Choose standard delivery.\n"
        f"{home}Menu: none. In the cart: nothing. Clicks left: 20.\n"
        'Agent: click "Help"\n'
        "Page: Help: how to return an item. Send it back within 30 days. Nothing can be ordered here.\n"
        f"{menu}19.\n"
        'Agent: click "Back"\n'
        f"{home}Menu: none. In the cart: nothing. Clicks left: 18.\n"
        'Agent: click "Jackets"\n'
        f"{jackets}{menu}17.\n"
        'Agent: click "Saga"\n'
        f"{sold_out}{menu}16.\n"
        'Agent: click "S"\n'
        "That cannot be clicked.\n"
        f"{sold_out}{menu}15.\n"
        'Agent: click "Back"\n'
        f"{jackets}{menu}14.\n"
        'Agent: click "Alba"\n'
        "Page: Alba jacket, wool, EUR 72\n"
        '[1] option "S"\n[2] option "M"\n[3] button "Add to cart" (not available)\n'
        f"{menu}13.\n"
        'Agent: click "S"\n'
        "Page: Alba jacket, wool, EUR 72\n"
        '[1] option "S" (chosen)\n[2] option "M"\n[3] button "Add to cart"\n'
        f"{menu}12.\n"
        'Agent: click "Add to cart"\n'
        "Page: Cart: Alba jacket, wool, EUR 72, size S\n"
        '[1] button "Remove"\n[2] button "Checkout"\n'
        'Menu: "Back", "Home". In the cart: 1 item. Clicks left: 11.\n'
        'Agent: click "Checkout"\n'
        "Page: Checkout: Alba jacket, wool, EUR 72, size S\n"
        '[1] option "Standard delivery" (chosen)\n[2] option "Express delivery"\n[3] button "Place order"\n'
        'Menu: "Back", "Home", "Cart". In the cart: 1 item. Clicks left: 10.\n'
        'Agent: click "Express delivery"\n'
        "Page: Checkout: Alba jacket, wool, EUR 72, size S\n"
        '[1] option "Standard delivery"\n[2] option "Express delivery" (chosen)\n[3] button "Place order"\n'
        'Menu: "Back", "Home", "Cart". In the cart: 1 item. Clicks left: 9.\n'
        'Agent: click "Place order"\n'
        "Page: Order placed: Alba jacket, wool, EUR 72, size S, express delivery\n"
        "User: That is not what I asked for.\n"
        "Reward: 0.4"
    )


def test_the_end_of_the_turns_and_pages_that_do_not_load_are_told():
    env = gym.make(ID, render_mode="ansi")
    env.reset(seed=0)
    for _ in range(10):
        env.step(HELP_LINK)
        env.step(BACK)
    assert env.render().endswith("Clicks left: 0.\nUser: I cannot wait any longer. Goodbye.\nReward: 0")
    env = gym.make(ID, level="hard", render_mode="ansi").unwrapped
    env.reset(seed=5)
    goal = "User: Please order me a checked green wool shirt in size XL for at most EUR 120. Choose pick-up.\n"
    assert f" A page may not load: click again.\n{goal}" in env.render()
    while env.task.status[0] != NOT_LOADED:
        env.step(env.task.expert_actions()[0])
    assert "\nThe page did not load.\nPage: " in env.render()


@pytest.mark.parametrize("message", ["click 3", "Click [3].", "action: click 3", "The third fits best.\nclick (3)"])
def test_elements_can_be_clicked_by_number(message):
    task = make_task()
    click(task, 0)
    assert task.parse_action(0, message) == 2
    assert task.parse_action(0, 'click "Alba"') == 2


@pytest.mark.parametrize("message", ["click 0", "click 5", "click", "click Bertha"])
def test_what_is_not_on_the_page_is_not_understood(message):
    task = make_task()
    click(task, 0)
    with pytest.raises(MessageError, match='click "Runa"; click "Saga"; click "Alba"; click "Back"; click "Home"'):
        task.parse_action(0, message)
