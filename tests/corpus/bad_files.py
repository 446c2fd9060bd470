"""Files other than configurations that are wrong, and the lines that say so (`table.py` reads them)."""

GRAPHS = r"""
empty.edges | 1 | the file is empty; its first line is the number of nodes
comment.edges # n\n# 0 1\n | 1 | the file is empty; its first line is the number of nodes
words.edges nodes edges\n | 1 | the first line is the number of nodes, one integer, not 'nodes edges'
count_float.edges 4.0\n0 1\n | 1 | the first line is the number of nodes, one integer, not '4.0'
count_neg.edges -4\n0 1\n | 1 | -4 nodes are not possible; expected 1 to 1000000
count_zero.edges 0\n | 1 | 0 nodes are not possible; expected 1 to 1000000
count_big.edges 99999999999999999999\n0 1\n
    | 1 | the first line is the number of nodes, one integer, not '99999999999999999999'
count_large.edges 9999999999\n | 1 | 9999999999 nodes are not possible; expected 1 to 1000000
count_below.edges \nn\n | 2 | the first line is the number of nodes, one integer, not 'n'
all.edges 4\n0 1\n0 9\n2 2\nx 1\n1 2 3\n-1 2\n
    | 1 | 2 of 4 nodes have no neighbor (2, 3); add edges or set allow_disconnected
    | 3 | rank 9 is out of range; with 4 nodes it is 0..3
    | 4 | node 2 is its own neighbor; remove that, it always has its own model
    | 5 | 'x' is not an integer; expected a rank 0..3
    | 6 | an edge is two ranks 'i j', not '1 2 3'
    | 7 | rank -1 is out of range; with 4 nodes it is 0..3
all.adj 3\n1 2\n0\n1.5 2\n0\n | 2 | node 0 lists 2, but node 2 does not list 0; add it or set directed
    | 4 | '1.5' is not an integer; expected a rank 0..2
    | 4 | node 2 is its own neighbor; remove that, it always has its own model
    | 5 | a line after those of all 3 nodes; remove it or correct n
nocount.edges 0 1\n1 2\n2 0\n | 1 | the first line is the number of nodes, one integer, not '0 1'
range.edges 3\n0 1\n1 2\n2 3\n | 4 | rank 3 is out of range; with 3 nodes it is 0..2
negative.edges 3\n0 1\n1 2\n2 -1\n | 4 | rank -1 is out of range; with 3 nodes it is 0..2
loop.edges 3\n0 1\n1 2\n2 2\n | 4 | node 2 is its own neighbor; remove that, it always has its own model
letters.edges 3\n0 1\n1 b\n | 1 | 1 of 3 nodes have no neighbor (2); add edges or set allow_disconnected
    | 3 | 'b' is not an integer; expected a rank 0..2
three.edges 3\n0 1 0.5\n1 2 0.5\n
    | 1 | 3 of 3 nodes have no neighbor (0, 1, 2); add edges or set allow_disconnected
    | 2 | an edge is two ranks 'i j', not '0 1 0.5'
    | 3 | an edge is two ranks 'i j', not '1 2 0.5'
one.edges 3\n0\n1 2\n | 1 | 1 of 3 nodes have no neighbor (0); add edges or set allow_disconnected
    | 2 | an edge is two ranks 'i j', not '0'
apart.edges 4\n0 1\n2 3\n
    | 1 | the graph falls into 2 components, nodes 0 and 2 do not reach each other; add edges or set ...
lonely.edges 4\n0 1\n1 2\n | 1 | 1 of 4 nodes have no neighbor (3); add edges or set allow_disconnected
noedges.edges 3\n | 1 | 3 of 3 nodes have no neighbor (0, 1, 2); add edges or set allow_disconnected
float.edges 3\n0.0 1.0\n1 2\n | 1 | 1 of 3 nodes have no neighbor (0); add edges or set allow_disconnected
    | 2 | '0.0' is not an integer; expected a rank 0..2
    | 2 | '1.0' is not an integer; expected a rank 0..2
exp.edges 3\n1e0 2\n | 1 | 3 of 3 nodes have no neighbor (0, 1, 2); add edges or set allow_disconnected
    | 2 | '1e0' is not an integer; expected a rank 0..2
hex.edges 3\n0x0 1\n1 2\n | 1 | 1 of 3 nodes have no neighbor (0); add edges or set allow_disconnected
    | 2 | '0x0' is not an integer; expected a rank 0..2
unicode_digit.edges 3\n0 ²\n1 2\n | 1 | 1 of 3 nodes have no neighbor (0); add edges or set allow_disconnected
    | 2 | '²' is not an integer; expected a rank 0..2
semicolon.edges 3\n0;1\n1;2\n
    | 1 | 3 of 3 nodes have no neighbor (0, 1, 2); add edges or set allow_disconnected
    | 2 | an edge is two ranks 'i j', not '0;1'
    | 3 | an edge is two ranks 'i j', not '1;2'
long.edges 3\n<7  * 5000>\n | 1 | 3 of 3 nodes have no neighbor (0, 1, 2); add edges or set allow_disconnected
    | 2 | an edge is two ranks 'i j', not '7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 ...'
longword.edges 3\n0 <x * 5000>\n
    | 1 | 3 of 3 nodes have no neighbor (0, 1, 2); add edges or set allow_disconnected
    | 2 | '<x * 40>...' is not an integer; expected a rank 0..2
escape.edges 3\n0 \e[31m1\n | 1 | 3 of 3 nodes have no neighbor (0, 1, 2); add edges or set allow_disconnected
    | 2 | '\\x1b[31m1' is not an integer; expected a rank 0..2
bignum.edges 3\n0 999999999999999999999999999999\n
    | 1 | 3 of 3 nodes have no neighbor (0, 1, 2); add edges or set allow_disconnected
    | 2 | '999999999999999999999999999999' is not an integer; expected a rank 0..2
duplicate.edges 3\n0 1\n0 1\n1 2\n | 3 | 0 1 is listed twice; the first is in line 2, remove one
csv.edges source,target\n0,1\n | 1 | the first line is the number of nodes, one integer, not 'source target'
json.edges {"n": 3} | 1 | the first line is the number of nodes, one integer, not '{"n": 3}'
gml.edges graph [\n node [\n id 0 ]\n]\n
    | 1 | the first line is the number of nodes, one integer, not 'graph ['
many.edges 4\n<9 9\n * 3000>
    | 1 | 4 of 4 nodes have no neighbor (0, 1, 2, 3); add edges or set allow_disconnected
    | ... * 19
    |  | and 2,981 defects more; correct these first
short.adj 3\n1 2\n0 2\n | 2 | node 0 lists 2, but node 2 does not list 0; add it or set directed
    | 3 | the file ends after 2 of 3 nodes; each node has its line
    | 3 | node 1 lists 2, but node 2 does not list 1; add it or set directed
extra.adj 2\n1\n0\n0\n | 4 | a line after those of all 2 nodes; remove it or correct n
asym.adj 3\n1 2\n0\n0\n1\n | 5 | a line after those of all 3 nodes; remove it or correct n
loop.adj 3\n0 1\n0 2\n1\n | 2 | node 0 is its own neighbor; remove that, it always has its own model
range.adj 2\n1\n2\n | 2 | node 0 lists 1, but node 1 does not list 0; add it or set directed
    | 3 | rank 2 is out of range; with 2 nodes it is 0..1
twice.adj 2\n1 1\n0\n | 2 | 0 1 is listed twice; the first is in line 2, remove one
colon.adj 2\n0: 1\n1: 0\n | 2 | '0:' is not an integer; expected a rank 0..1
    | 3 | '1:' is not an integer; expected a rank 0..1
brackets.adj 2\n[1]\n[0]\n | 1 | 2 of 2 nodes have no neighbor (0, 1); add edges or set allow_disconnected
    | 2 | '[1]' is not an integer; expected a rank 0..1
    | 3 | '[0]' is not an integer; expected a rank 0..1
blank.adj 3\n1\n\n0 2\n1\n | 2 | node 0 lists 1, but node 1 does not list 0; add it or set directed
    | 4 | node 2 is its own neighbor; remove that, it always has its own model
    | 4 | node 2 lists 0, but node 0 does not list 2; add it or set directed
    | 5 | a line after those of all 3 nodes; remove it or correct n
onlyn.adj 3\n | 1 | the file ends after 0 of 3 nodes; each node has its line
    | 1 | 3 of 3 nodes have no neighbor (0, 1, 2); add edges or set allow_disconnected
matrix.adj 3\n0 1 1\n1 0 1\n1 1 0\n | 2 | node 0 is its own neighbor; remove that, it always has its own model
    | 2 | 0 1 is listed twice; the first is in line 2, remove one
    | 3 | node 1 is its own neighbor; remove that, it always has its own model
    | 4 | 2 1 is listed twice; the first is in line 4, remove one
    | 4 | node 2 lists 1, but node 1 does not list 2; add it or set directed
    | 4 | node 2 lists 0, but node 0 does not list 2; add it or set directed
ambiguous.txt 3\n1 2\n0 2\n0 1\n |  | may be edges or adjacency; choose with 'type', or name it .edges or .adj
noext 4\n0 1\n | 1 | 2 of 4 nodes have no neighbor (2, 3); add edges or set allow_disconnected
null.edges 3\n0 1\0\n1 2\n | 1 | 1 of 3 nodes have no neighbor (0); add edges or set allow_disconnected
    | 2 | '1\\x00' is not an integer; expected a rank 0..2
edges.txt 3\n0 1\n1 2 \n0 9\n0 1\n | 4 | rank 9 is out of range; with 3 nodes it is 0..2
    | 5 | 0 1 is listed twice; the first is in line 2, remove one
list.csv 0,1\n1,2\n | 1 | the first line is the number of nodes, one integer, not '0 1'
both_and_one.edges 4\n0 1\n1 0\n1 2\n2 1\n2 3\n3 2\n3 0\n
    | 8 | '3 0' is there, '0 3' is not, unlike others; add it or set directed
directed.edges 4\n0 1\n1 2\n2 3\n3 0\n0 2\n2 0\n
    | 2 | 4 of 6 edges are listed one way only, such as '0 1'; set directed, or add the other way of each
"""
"""Names of graph files and their content, and what follows the name."""

TRACES = r"""
contacts
    | 1 | the first line is the number of nodes, one integer from 1
contacts 3\n0 1 5\n | 2 | a contact is 'i j begin end', two ranks and two times, not '0 1 5'
contacts 3\n0 1 5 4\n | 2 | times must be seconds with 0 <= begin <= end, not '5 4'
contacts 3\n0 1 5 inf\n | 2 | times must be seconds with 0 <= begin <= end, not '5 inf'
contacts 3\n1 1 0 4\n | 2 | node 1 is in contact with itself; remove that
contacts 3\n0 3 0 4\n | 2 | rank 3 is out of range; with 3 nodes it is 0..2
contacts 2\n0 1 0 1e9\n
    |  | 1,000,000,000 rounds are too many, at most 1,000,000; increase seconds_per_round
contacts 2\n0 1 0 1e308\n |  | 1e+308 rounds are too many, at most 1,000,000; increase seconds_per_round
awake | 1 | the trace is empty; it has one 'rank,begin,end' per line
awake 0,1\n | 1 | expected 'rank,begin,end', a rank and two times, not '0 1'
awake 7,0,1\n | 1 | rank 7 is out of range; with 4 nodes it is 0..3
awake 0,5,1\n | 1 | times must be seconds with 0 <= begin <= end, not '5 1'
awake 0,0,1e9\n |  | 1,000,000,000 rounds are too many, at most 1,000,000; increase seconds_per_round
"""
"""Names of traces and their content, and what follows the name."""

NO_TEXT: dict[str, bytes] = {
    "picture.edges": b"\x89PNG\r\n\x1a\n\x00\xff",
    "utf16.edges": b"\xff\xfe3\x00\n\x000\x00 \x001\x00\n\x001\x00 \x002\x00\n\x00",
    "zipped.edges": b"\x1f\x8b\x08\x00\x00",
}
"""Graph files that are no text."""

WEIGHTS = r"""
w_empty.txt | 1 | the file is empty; it holds n rows of n weights, or lines 'i j weight'
w_words.txt a b c\nd e f\ng h i\n | 1 | 'a' is not a weight; expected a number from 0 to 1
    | ... * 7
    | 3 | 'i' is not a weight; expected a number from 0 to 1
w_neg.txt 0.5 0.5 0\n-0.5 1 0.5\n0 0 1\n | 2 | '-0.5' is not a weight; expected a number from 0 to 1
    | 2 | the weights that node 1 gives sum to 1.5; they must sum to 1
    | 3 | the weights that node 3 gives sum to 0; they must sum to 1
w_sum.txt 0.5 0.5 0.5\n0.3 0.3 0.4\n0 0 1\n
    | 1 | node 0 does not receive from node 2 in this graph; its weight must be 0
    | 1 | the weights that node 0 gives sum to 1.5; they must sum to 1
    | 3 | the weights that node 3 gives sum to 0; they must sum to 1
w_nan.txt nan 0.5 0.5\n0 1 0\n0 0 1\n | 1 | 'nan' is not a weight; expected a number from 0 to 1
    | 1 | node 0 does not receive from node 2 in this graph; its weight must be 0
    | 3 | the weights that node 3 gives sum to 0; they must sum to 1
w_rows.txt 1 0 0\n0 1 0\n | 1 | the weights that node 0 gives sum to 0; they must sum to 1
    | 1 | the weights that node 1 gives sum to 0; they must sum to 1
    | 1 | the weights that node 2 gives sum to 0; they must sum to 1
    | 1 | the weights that node 3 gives sum to 0; they must sum to 1
w_cols.txt 1 0\n0 1\n0 0\n | 1 | 2 weights in a file of 3 rows; the matrix is n times n
    | 2 | 2 weights in a file of 3 rows; the matrix is n times n
    | 2 | the weights that node 2 gives sum to 0; they must sum to 1
    | 2 | the weights that node 3 gives sum to 0; they must sum to 1
    | 3 | 2 weights in a file of 3 rows; the matrix is n times n
w_big.txt 1 0 0 0 0\n0 1 0 0 0\n0 0 1 0 0\n0 0 0 1 0\n0 0 0 0 1\n
    | 5 | weight 4 4 is out of range; ranks of this graph are 0..3
w_triple.txt 0 0 1\n1 1 1\n2 2 0.5\n2 7 0.5\n | 4 | weight 2 7 is out of range; ranks of this graph are 0..3
    | 4 | the weights that node 3 gives sum to 0; they must sum to 1
w_twice.txt 0 0 0.5\n0 0 0.5\n1 1 1\n2 2 1\n
    | 1 | the weights that node 0 gives sum to 0.5; they must sum to 1
    | 2 | a second weight for 0 0; the first is in line 1
    | 4 | the weights that node 3 gives sum to 0; they must sum to 1
w_trip_letters.txt 0 x 0.5\n0 0 1\n1 1 1\n2 2 1\n
    | 1 | expected 'i j weight', two ranks and a number, not '0 x 0.5'
    | 4 | the weights that node 3 gives sum to 0; they must sum to 1
w_long.txt <x  * 3000> | 1 | 3000 weights in a file of 1 rows; the matrix is n times n
    | 1 | 'x' is not a weight; expected a number from 0 to 1
w_unheard.txt 0.5 0 0.5 0\n0 1 0 0\n0 0 1 0\n0 0 0 1\n
    | 1 | node 0 does not receive from node 2 in this graph; its weight must be 0
w_all.txt 0 0 0.5\n0 1 0.25\n0 2 0.25\n1 1 -0.5\n1 0 one\n2 2\n2 2 1\n9 2 1\n2 2 1\n3 3 1\n
    | 3 | node 0 does not receive from node 2 in this graph; its weight must be 0
    | 4 | '-0.5' is not a weight; expected a number from 0 to 1
    | 5 | 'one' is not a weight; expected a number from 0 to 1
    | 6 | expected 'i j weight', two ranks and a number, not '2 2'
    | 8 | weight 9 2 is out of range; ranks of this graph are 0..3
    | 9 | a second weight for 2 2; the first is in line 7
    | 10 | the weights that node 1 gives sum to 0; they must sum to 1
"""
"""Files of weights for a ring of four nodes, likewise."""

IDX = r"""
empty | dataset | {here}/set/train-images-idx3-ubyte: starts with 0x, an IDX file of this kind with 0x00000803
one file missing
    | dataset.path | no complete set of mnist files in {here}/set; fetch them with: decentnode download idx
    + variant=mnist --to {here}/set
labels for images
    | dataset | {here}/set/train-images-idx3-ubyte: starts with 0x00000801, an IDX file of this kind with ...
images for labels
    | dataset | {here}/set/train-labels-idx1-ubyte: starts with 0x00000803, an IDX file of this kind with ...
header cut | dataset | {here}/set/train-images-idx3-ubyte: ends within its header
content cut
    | dataset | {here}/set/train-images-idx3-ubyte: its header announces 40x5x4 = 800 bytes, 799 follow
too long | dataset | {here}/set/train-images-idx3-ubyte: its header announces 40x5x4 = 800 bytes, more follow
no image | dataset | {here}/set/train-images-idx3-ubyte: its header announces 0x5x4 = 0 bytes, 0 follow
images without pixels
    | dataset | {here}/set/train-images-idx3-ubyte: its header announces 40x0x4 = 0 bytes, 0 follow
other numbers than bytes
    | dataset | {here}/set/train-images-idx3-ubyte: starts with 0x00000c03, an IDX file of this kind with ...
a header of noise
    | dataset | {here}/set/train-images-idx3-ubyte: its header announces 4294967295x4294967295x4294967295 ...
a page that says 404
    | dataset | {here}/set/train-images-idx3-ubyte: starts with 0x3c68746d, an IDX file of this kind with ...
fewer labels
    | dataset | {here}/set/train-labels-idx1-ubyte: 39 labels for the 40 images in train-images-idx3-ubyte
a label too high | dataset | {here}/set/t10k-labels-idx1-ubyte: holds a label 10, those of mnist are 0..9
gzip cut
    | dataset | {here}/set/train-images-idx3-ubyte: cannot be read: Compressed file ended before the
    + end-of-stream marker was reached
gzip flipped
    | dataset | {here}/set/train-images-idx3-ubyte: cannot be read: CRC check failed 0x16dde0a1 != 0x16dce0a1
gzip of nothing
    | dataset | {here}/set/train-images-idx3-ubyte: cannot be read: Compressed file ended before the ...
sizes that differ | dataset | {here}/set: training and test images have different sizes
"""
"""The damages in `formats.IDX_DEFECTS`, and what follows `x.yaml:8 `."""

CIFAR = r"""
empty | dataset | {here}/set/data_batch_2.bin: images of shape (0, 3072), expected (n, 3072) with n > 0
one file missing
    | dataset.path | no complete set of cifar10 files in {here}/set; fetch them with: decentnode download ...
cut | dataset | {here}/set/test_batch.bin: 24583 bytes are not a whole number of records of 3073 bytes; it ...
a label too high | dataset | {here}/set/data_batch_1.bin: labels 0..10, expected 0..9
a page that says 404
    | dataset | {here}/set/data_batch_3.bin: 16 bytes are not a whole number of records of 3073 bytes; it ...
zipped
    | dataset | {here}/set/data_batch_4.bin: 71 bytes are not a whole number of records of 3073 bytes; it ...
"""
"""The damages in `formats.CIFAR_DEFECTS`, likewise."""

KEYS = r"""
a folder for all | {here}/keys: others have access (mode 0755); type: chmod 700 {here}/keys
a secret for all | {here}/keys/machine-0.secret: others have access (mode 0644); type: chmod 600 ...
a secret for the group | {here}/keys/machine-0.secret: others have access (mode 0640); type: chmod 600 ...
a secret that others may write
    | {here}/keys/machine-0.secret: others have access (mode 0602); type: chmod 600 ...
a folder that others may enter | {here}/keys: others have access (mode 0711); type: chmod 700 {here}/keys
a list that the group may change
    | {here}/keys/machines.json: others have access (mode 0664); type: chmod 644 {here}/keys/machines.json
a list that others may change
    | {here}/keys/machines.json: others have access (mode 0666); type: chmod 644 {here}/keys/machines.json
no list
    | {here}/keys/machines.json: No such file or directory; copy it from the folder that 'decentnode keys ...
no secret
    | {here}/keys/machine-0.secret: No such file or directory; copy it from the folder that 'decentnode ...
an empty list
    | {here}/keys/machines.json: Input data was truncated; copy it again from the folder that 'decentnode ...
a list of tomorrow
    | {here}/keys/machines.json: Invalid enum value 2 - at `$.version`; copy it again from the folder that
    + 'decentnode keys CONFIG.yaml' made
a list that is torn
    | {here}/keys/machines.json: Input data was truncated; copy it again from the folder that 'decentnode ...
a list of one machine
    | {here}/keys/machines.json: lists 1 machines, the mapping has 2; make new keys: decentnode keys ...
a list of three machines
    | {here}/keys/machines.json: lists 3 machines, the mapping has 2; make new keys: decentnode keys ...
a list of others
    | {here}/keys/machine-0.secret: does not belong to {here}/keys/machines.json; copy both from the folder
    + that 'decentnode keys CONFIG.yaml' made
a picture for a list
    | {here}/keys/machines.json: JSON is malformed: invalid character (byte 0); copy it again from the ...
an empty secret
    | {here}/keys/machine-0.secret: Input data was truncated; copy it again from the folder that ...
another's secret | {here}/keys/machine-0.secret: has the keys of machine 1, not of 0; copy the right one
a secret that is torn
    | {here}/keys/machine-0.secret: Input data was truncated; copy it again from the folder that ...
a secret that is too short
    | {here}/keys/machine-0.secret: Expected `str` of length >= 40 - at `$.curve`; copy it again from the ...
a secret of other letters
    | {here}/keys/machine-0.secret: Expected `str` matching regex '^[0-9a-f]{64}$' - at `$.ed25519`; copy it
    + again from the folder that 'decentnode keys CONFIG.yaml' made
a secret with more in it
    | {here}/keys/machine-0.secret: Object contains unknown field `password`; copy it again from the ...
"""
"""The damages in `formats.KEY_DEFECTS`."""

ROW = (
    '{"round": 0, "seconds": 1.0, "metrics": {"accuracy": {"0": 0.5}, "loss": {"0": '
    '1.0}}, "train_loss": {"0": 1.0}, "bytes_sent": {"0": 10}}\n'
)
"""A line of evaluations that is right."""

RUNS = r"""
partition.json {"schema": 3} | run: not the directory of a run (it has no config.yaml)
summary.json {"schema": 3, "name": "a"}
    | run/summary.json: not written by this version of decentnode: 'nodes': Expected `int`, got `null`
evaluations.jsonl | run/evaluations.jsonl: holds no evaluation, so there is nothing to draw
evaluations.jsonl {"round": 0, "seconds": 1.0, "metrics": {"accuracy": {"0": 0.5}, "loss": {"0": 1.0}},
    + "train_loss": {"0": 1.0}, "bytes_sent": {
    | run/evaluations.jsonl: holds no evaluation, so there is nothing to draw
evaluations.jsonl {row}{"round": 0, "seconds": 1.0, "\n{row}
    | run/evaluations.jsonl:2: not written by this version of decentnode: Input data was truncated
evaluations.jsonl \n{row}
    | run/evaluations.jsonl:1: not written by this version of decentnode: Input data was truncated
evaluations.jsonl hello\n
    | run/evaluations.jsonl:1: ...: JSON is malformed: invalid character (byte 0)
evaluations.jsonl {"round": 1}\n
    | run/evaluations.jsonl:1: ...: Object missing required field `seconds`
evaluations.jsonl <a\n * 1000>
    | run/evaluations.jsonl:1: ...: JSON is malformed: invalid character (byte 0)
    | ... * 19
    | run/evaluations.jsonl: and 980 lines more that cannot be read; is this the right file?
"""
"""A file of a run directory, with `{row}` for ROW, and what `plot` says of it."""

BESIDE_A_ROW = r"""
summary.json {"schema": 99, "name": "a"}
    | run/summary.json: has schema 99; this version of decentnode reads schema 3
summary.json {} | run/summary.json: has schema None; this version of decentnode reads schema 3
summary.json []
    | run/summary.json: not a JSON object: Expected `object`, got `array`; restore the file, or remove it
summary.json {"schema": 3, "na
    | run/summary.json: not a JSON object: Input data was truncated; restore the file, or remove it
summary.json | run/summary.json: not a JSON object: Input data was truncated; restore the file, or remove it
summary.json {"schema": 3}
    | run/summary.json: not written by this version of decentnode: 'name': Expected `str`, got `null`
summary.json {"schema": 3, "name": 5}
    | run/summary.json: not written by this version of decentnode: 'name': Expected `str`, got `int`
partition.json {
    | run/partition.json: not a JSON object: Input data was truncated; restore the file, or remove it
partition.json {"schema": 3}
    | run/partition.json: not written by this version of decentnode: 'labels_per_rank': Expected `array`, ...
partition.json {"schema": 3, "labels_per_rank": [[1, "a"]]}
    | run/partition.json: not written by this version of decentnode: 'labels_per_rank': Expected `int`, ...
partition.json {"schema": 3, "labels_per_rank": [[1, 2], [3]]}
    | run/partition.json: not written by this version of decentnode: labels_per_rank has one number per ...
"""
"""A file of a run directory that has right evaluations besides, and what `plot` says of it."""

ROWS = r"""
= "round": 0
"round": "a"
    | run/evaluations.jsonl:1: ...: Expected `int`, got `str` - at `$.round`
"round": -1 | run/evaluations.jsonl: round -1: round and seconds must be counted from 0

= "accuracy": {"0": 0.5}
"accuracy": {"0": NaN}
    | run/evaluations.jsonl:1: ...: JSON is malformed: invalid character (byte 59)
"accuracy": {"0": 1e999}
    | run/evaluations.jsonl:1: ...: Number out of range - at `$.metrics[...][...]`
"accuracy": {"zero": 0.5}
    | run/evaluations.jsonl:1: ...: Expected `int`, got `str` - at `key` in `$.metrics[...]`
"accuracy": {}
    | run/evaluations.jsonl: round 0: the metrics and bytes_sent need one entry for each node, at least one

= "bytes_sent": {"0": 10}
"bytes_sent": {}
    | run/evaluations.jsonl: round 0: the metrics and bytes_sent need one entry for each node, at least one
"bytes_sent": {"0": -10} | run/evaluations.jsonl: round 0: bytes_sent must not be negative

= "loss": {"0": 1.0}
"loss": {"1": 1.0}
    | run/evaluations.jsonl: round 0: the metrics and bytes_sent need one entry for each node, at least one

= "seconds": 1.0
"seconds": -1e308 | run/evaluations.jsonl: round 0: round and seconds must be counted from 0
"""
"""Edits of ROW."""
