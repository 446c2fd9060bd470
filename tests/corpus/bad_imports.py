"""Configurations of decentralizepy that cannot be imported, and the lines that say so."""

INI = """\
[DATASET]
dataset_package = decentralizepy.datasets.CIFAR10
dataset_class = CIFAR10
model_class = LeNet
train_dir = /mnt/nfs/shared/CIFAR
test_dir = /mnt/nfs/shared/CIFAR
; python list of fractions below
sizes =
random_seed = 99
partition_niid = dirichlet
alpha = 1

[OPTIMIZER_PARAMS]
optimizer_package = torch.optim
optimizer_class = SGD
lr = 0.01

[TRAIN_PARAMS]
training_package = decentralizepy.training.Training
training_class = Training
rounds = 3
full_epochs = False
batch_size = 8
shuffle = True
loss_package = torch.nn
loss_class = CrossEntropyLoss

[COMMUNICATION]
comm_package = decentralizepy.communication.TCP
comm_class = TCP
addresses_filepath = ip_addr_6Machines.json

[SHARING]
"""
"""A configuration of decentralizepy that lacks what its section SHARING says."""

PLAIN = INI + "sharing_package = decentralizepy.sharing.Sharing\nsharing_class = Sharing\n"

FLAGS = ("-ms", "1", "-ps", "16", "-is", "2", "-gf", "regular_16.edges")

FILES = {
    "list.json": "[]",
    "gap.json": '{"0": "a", "2": "b"}',
    "two.json": '{"0": "a", "1": "b"}',
    "cut.json": '{"0":\n',
}
"""Lists of the addresses of machines; three of them are wrong."""

INI_EDITS = r"""
= [DATASET]
rounds: 3\n[DATASET] | 1 | no INI file: the first line is a section, such as [DATASET], not 'rounds: 3'
[OPTIMIZER_PARAMS] | 13 | '[OPTIMIZER_PARAMS]' appears twice; remove one

= [SHARING]
what\n[SHARING] | 33 | an entry is 'key = value', not 'what'
[DATASET] | 33 | '[DATASET]' appears twice; remove one
[SHARNG] | 33 [SHARNG] | unknown section; did you mean 'SHARING'?

= dataset_class = CIFAR10
dataset_class = CIFR10
    | 3 DATASET.dataset_class | no counterpart of 'CIFR10'; did you mean 'CIFAR10'?; name another plug-in,
    + such as dataset=NAME or dataset=module:Class
dataset_class = Coursera
    | 3 DATASET.dataset_class | no counterpart of 'Coursera' (those with one: CIFAR10, Femnist, Celeba, ...
# no class | 1 DATASET.dataset_class | missing; it names the class

= partition_niid = dirichlet
partition_niid = dirchlet
    | 10 DATASET.partition_niid | unknown partition; did you mean 'dirichlet'?
partition_niid = iid\nvalidation_source = test
    | 11 DATASET.validation_size | missing; it is the fraction of the samples that validation_source names
partition_niid = iid\nvalidation_source = Tset\nvalidation_size = 0.1
    | 11 DATASET.validation_source | unknown part; did you mean 'test'?

= full_epochs = False
full_epochs = T | 22 TRAIN_PARAMS.full_epochs | must be True or False, not 'T'
full_epochs = 'False' | 22 TRAIN_PARAMS.full_epochs | must be True or False, not ''False''

= SGD
SDG | 15 training.optimizer.name | unknown optimizer 'SDG'; did you mean 'SGD'? (known: ...)

= lr =
lr = 1\nlr = | 17 | 'lr' appears twice; remove one
lrr = | 16 training.optimizer.lrr | unknown option of SGD; did you mean 'lr'?

= = decentralizepy.training
= mine
    | 20 TRAIN_PARAMS.training_class | local steps of your own are no plug-in here; use Training, or the ...

= batch_size = 8
batch_size = a | 23 training.batch_size | must be a whole number > 0 or null, not 'a'

= shuffle
shufle | 24 TRAIN_PARAMS.shufle | unknown key; did you mean 'shuffle'?

= sharing_class = Sharing
sharing_class = Faithful
    | 35 SHARING.sharing_class | no counterpart of 'Faithful' (those with one: Sharing, ...
sharing_class = Choco\nalpha = 0.1 | 35 SHARING.step_size | missing; Choco has no default for it
"""
"""Edits of PLAIN, and what follows `config.ini:`."""

SECTIONS = ("DATASET", "OPTIMIZER_PARAMS", "TRAIN_PARAMS", "SHARING")
INI_BYTES: dict[bytes, list[str]] = {
    b"": [
        f"config.ini:1: no section [{name}]; a configuration of decentralizepy has ..." for name in SECTIONS
    ],
    b"[DATASET]\nmodel_class = \xff\n": ["config.ini:2: not UTF-8 text; save it as UTF-8"],
    b"#" * (1 << 18) + b"\n": ["config.ini: too large for a configuration; at most 262144 bytes are read"],
}
"""Whole files that give nothing to import."""

IMPORT_WORDS = r"""
-gf regular_16.edges
    | config.ini:1 rounds | in decentralizepy an argument of the driver; add --iterations N
-is 2 | config.ini:1 graph | in decentralizepy an argument of the driver; add --graph FILE
-is 2 -gf regular.edges
    | command line | graph.path: no such file: {here}/regular.edges; did you mean 'regular_16.edges'?
{flags} -is 0 | command line | rounds: must be a whole number > 0, not 0
{flags} -ps 8
    | command line | mapping: the machines carry 8 nodes, the graph has 16; correct either, they must be equal
{flags} -ps many | --procs-per-machine | numbers of processes, such as 16 or 16,8, not 'many'
{flags} -ms 4 | ip_addr_6Machines.json | cannot be read: No such file or directory
{flags} --ip no.json | no.json | cannot be read: No such file or directory
{flags} --ip list.json
    | list.json | must be the addresses by machine id, such as {"0": "10.0.0.1", "1": "10.0.0.2"}
{flags} --ip gap.json | gap.json | the machine ids must be 0..1, not '0, 2'
{flags} --ip cut.json | cut.json:2 | not valid JSON: Expecting value
{flags} --ip two.json -ms 3 | two.json | has 2 addresses for 3 machines; add the others
{flags} --ip two.json -ms 2 -ps 8,4,4
    | --procs-per-machine | must be one number, or one for each of the 2 machines, not 3
{flags} --ip two.json -ms 2
    | two.json:1 mapping | the machines carry 32 nodes, the graph has 16; correct either, they must be equal
{flags} sede=1 | command line | sede: unknown key; did you mean 'seed'?
{flags} --out no/x.yaml | no/x.yaml | cannot be written: No such file or directory
"""
"""Words after `import config.ini`, a file with PLAIN."""
