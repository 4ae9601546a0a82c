"""Training across sites or phones without pooling the data.

round.py        one round as a pure state machine: messages in, messages out
events.py       what it hears and says
messages.py     what travels: Layout, Instruction, Update
gate.py         what may enter a sum, and why the rest may not
algorithms/     one file per algorithm, with its paper's equation numbers
compression/    codecs and error feedback, measured in bytes on the wire
engine/         local training of a whole cohort: compiled kernel, batched, plain loop
effects.py      ranges of settings, and where each has an effect
keepsakes.py    what personalisation leaves with its owners
simulate.py     thousands of clients in one process
flower/         the only files that know Flower
"""
