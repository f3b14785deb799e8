"""Real text for the oracle on SmolLM2: prose, lists, code, numbers, other scripts, and chats in its own template."""

LIGHTHOUSE = """\
The lighthouse at the end of the breakwater had been dark for eleven years when the harbour council voted to light it
again. Nobody could quite say who had proposed it. The fishing boats carried better instruments than any lamp, and the
ferries had stopped calling in the spring of the flood. Yet the motion passed without a voice against it, and in the
second week of October two electricians from the mainland came over with a crate of parts and a letter of instruction.

They found the stairs sound and the lens whole. The keeper's logbook was still on its shelf, wrapped in oilcloth, with
a pencil tied to its spine; the last entry recorded a clear night, a light wind from the south-west, and the passage of
a single ship whose name the keeper had not been able to read. The younger of the two electricians copied the line into
her own notebook before she opened the lamp housing, because it seemed to her that somebody ought to.
"""

WATER = """\
Water is unusual in that it expands when it freezes. In most liquids the molecules pack more tightly as they slow down,
so the solid sinks. In ice, hydrogen bonds hold each molecule at a distance from its four neighbours, which leaves an
open lattice that is about nine per cent less dense than the liquid. Lakes therefore freeze from the top, and the water
beneath stays liquid and close to four degrees Celsius, the temperature at which it is densest.

The consequences reach far beyond lakes. Rocks are split when water freezes in their cracks, soils heave and roads
break up in spring, and pipes burst. Sea ice floats, reflects sunlight and insulates the ocean below it. If ice were
denser than water,
"""

RECIPE = """\
Ingredients:
- 500 g strong white flour
- 350 ml lukewarm water
- 7 g dried yeast
- 10 g salt
- 2 tablespoons olive oil

Method:
1. Mix the flour, yeast and salt in a large bowl.
2. Add the water and the oil and stir until no dry flour is left.
3. Knead for ten minutes, then cover and leave to rise for an hour.
4."""

CODE = '''\
def merge_sorted(left, right):
    """Merge two sorted lists into one sorted list.

    >>> merge_sorted([1, 4, 9], [2, 3, 10])
    [1, 2, 3, 4, 9, 10]
    """
    result = []
    i = j = 0
    while i < len(left) and j < len(right):
'''

SEQUENCE = "2, 4, 8, 16, 32, 64, 128, 256, 512,"

LETTER = """\
Dear Dr. Okafor,

Thank you for your letter of 14 March. I have read the draft report with great interest, and I agree with most of its
conclusions. There are, however, three points that I should like to raise before it is sent to the committee. First,
"""

FRENCH = "La mer était calme ce matin-là. Le vieux pêcheur, assis sur le quai, regardait les bateaux partir et pensait"


def chat(*turns: str) -> str:
    """User and assistant in turns, in SmolLM2's template, ready for the assistant's answer."""
    text = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    for i, turn in enumerate(turns):
        text += f"<|im_start|>{('user', 'assistant')[i % 2]}\n{turn}<|im_end|>\n"
    return text + "<|im_start|>assistant\n"


PROMPTS = {
    "lighthouse": LIGHTHOUSE,
    "water": WATER,
    "recipe": RECIPE,
    "code": CODE,
    "sequence": SEQUENCE,
    "letter": LETTER,
    "french": FRENCH,
    "one token": "The",
    "chat": chat("What is the capital of France, and what is it known for?"),
    "second turn": chat(
        "Why is the sky blue?",
        "Sunlight is scattered by the air, and blue light is scattered more than red.",
        "Then why is it red at sunset?",
    ),
    "summary": chat(f"Summarise this text in one sentence:\n\n{WATER}because of its density."),
}
