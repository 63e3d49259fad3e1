"""Commands of a new user's first hour, right and wrong: see reliability.py.

`first_hour_files.prepare` writes the files that they need.
"""

RIGHT = """\
--version
--help
help
help train
help translate
help evaluate
help predict
help extend
help glue
help models
help plot
help study
help data
help demo
help configs
help init
help completion
help train generated
train --help
train --help translation
train --help language_modeling
train --help tagging
train --help masked_lm
train --help causal_lm
train --help glue
train --help squad
train --help race
train --help events
train --help documents
train --help image_classification
study --help
study --help settings
evaluate -h
completion bash
completion zsh
completion tcsh
configs
configs copy
configs STUDY
configs --json
init translation/multi30k
init generated/copy first.yaml
init reverse
init configs/events/so_badges.yaml
init study/multi30k_s2l grid.yaml
init ud_ewt folder
models
models floater
models t5
models learned t5
models rotary --dim 64 --heads 4
models alibi --dim 768 --heads 12
models --format markdown
models --format csv
models --format json
models floater --format json
models --dim 64 --heads 4 --layers 2
data
train first.yaml data.train=99 training.max_steps=2 training.warmup_steps=0 training.average_last=1 run=first
train generated.yaml
train generated.yaml
train generated.yaml --json
train generated.yaml --steps 6
train generated.yaml model.position=sinusoidal run=runs/sinusoidal
train generated.yaml model.position=rotary run=runs/rotary
train generated.yaml model.position=learned model.max_length=96 run=runs/learned
train generated.yaml model.position=alibi run=runs/alibi
train generated.yaml model.position=t5 run=runs/t5
train generated.yaml model.position=none run=runs/none
train generated.yaml model.position=floater_relative run=runs/relative
train generated.yaml model.position=[floater_relative,sinusoidal] run=runs/both
train generated.yaml training.seed=2 --json run=runs/order
train generated.yaml model.position_options.delta=0.2 run=runs/delta
train generated.yaml model.position=rotary 'model.position_options={base: 500}' run=runs/base
train generated.yaml 'model.times={mode: stretch, max_scale: 4}' run=runs/times
train generated.yaml training.learning_rate=1e-3 training.max_grad_norm=1 run=runs/rate
train generated.yaml training.lr_scheduler_type=linear training.warmup_steps=0.5 run=runs/linear
train generated.yaml training.average_last=2 training.eval_steps=1 run=runs/mean
train generated.yaml data.problem=sum data.symbols=32 run=runs/sum
train generated.yaml data.problem=parity data.symbols=32 run=runs/parity
evaluate runs/generated
evaluate runs/generated --json
evaluate runs/generated --bins 6,9
evaluate runs/sinusoidal --reading length=32,interpolate=true
evaluate runs/relative --reading group=8:4,temperature=true
evaluate runs/mean --bins 4
train translation.yaml
translate runs/translation
translate runs/translation --source test.en
translate runs/translation --source test.en --output test.out
translate runs/translation --source test.en --beam 1
translate runs/translation --source test.en --length-penalty 0 --batch-tokens 500
translate runs/translation --source test.en --device cpu
translate runs/translation/model --source test.en
translate runs/translation --source test.en --reading temperature=true
evaluate runs/translation --source test.en --reference test.de
evaluate runs/translation --source test.en --reference test.de --json --output test.de.out
evaluate runs/translation --source test.en --reference test.de --language de --bins 10,20
train causal.yaml
train causal.yaml objective=masked run=runs/masked
evaluate runs/causal --source test.en
evaluate runs/causal --source test.en --window 16 --stride 8
evaluate runs/masked --source test.en
train tagging.yaml
train tagging.yaml model.position=sinusoidal model.position_options={} run=runs/flat
evaluate runs/tagging --source words.conllu --output tags.txt
train events.yaml
evaluate runs/events --source events.csv --part test
train documents.yaml
evaluate runs/documents --source documents --part valid
train digits.yaml
evaluate runs/digits --source digits --size 12
train cola.yaml
train cola.yaml run=runs/cola-flow plug.options={}
evaluate runs/cola --source glue/CoLA/dev.tsv
predict runs/cola --source glue/CoLA/test.tsv
predict runs/cola-flow --source glue/CoLA/test.tsv --output CoLA.tsv
glue runs/cola runs/cola-flow
glue runs/cola --json
train squad.yaml
evaluate runs/squad --source asked.json
predict runs/squad --source asked.json --output answers.json
train filled.yaml
train filled.yaml plug.options={} plug.train=flow run=runs/filled-flow
extend bert 128 --to bert-128
extend bert 96 --method flow --option 'special=[0, 2]' --to bert-96
extend llama 64 --to llama-64
extend llama 64 --method ntk --to llama-ntk
train longer.yaml
evaluate runs/longer --source test.en
plot runs/generated vectors
plot runs/generated similarity --output similarity.svg
plot runs/generated smoothness --json
plot runs/generated flow --length 8
plot runs/translation attention
plot runs/translation reordering --text train.en
plot runs/translation vectors --where 'encoder block 1 query' --numbers numbers.npz
plot runs/relative attention --length 12
plot runs/sinusoidal probe
plot bert similarity --output bert.png
init classify/long long.yaml
configs classify
train --help classification
train reviews.yaml
train reviews.yaml data.columns.text=review data.columns.label=stars run=runs/named
train reviews.yaml data.train=reviews.tsv run=runs/tsv
train reviews.yaml data.train=semicolons.csv run=runs/semicolons
train reviews.yaml data.train=reviews.jsonl run=runs/jsonl
train reviews.yaml data.train=reviews.json run=runs/json
train reviews.yaml data.train=reviews.parquet run=runs/parquet
train reviews.yaml data.train=reviews.csv.gz run=runs/gz
train reviews.yaml data.train=reviews.csv.xz run=runs/xz
train reviews.yaml data.train=saved run=runs/saved
train reviews.yaml data.train=tables run=runs/tables
train reviews.yaml data.train=[reviews.csv,reviews.jsonl] run=runs/several
train reviews.yaml data.valid=saved:test data.valid_share=null data.test_share=0 run=runs/valid
train reviews.yaml data.long=parts data.max_length=8 run=runs/parts
train reviews.yaml extend.length=96 data.max_length=null run=runs/whole
train reviews.yaml training.lr_scheduler_type=cosine run=runs/cosine
evaluate runs/reviews
evaluate runs/reviews --part test
evaluate runs/reviews --source reviews.jsonl --output labels.txt
evaluate runs/parts --source saved
predict runs/reviews --source new.txt
predict runs/reviews --source reviews.csv --output predicted.txt
train pairs.yaml
train pairs.yaml data.train=pairs.json data.valid=pairs.json run=runs/list
evaluate runs/pairs --source pairs.json
translate runs/pairs --source pairs.jsonl --output pairs.out
train causal.yaml data.train=reviews.jsonl data.valid=reviews.csv run=runs/tables-text
evaluate runs/causal --source reviews.parquet
train filled.yaml data.train=reviews.jsonl data.valid=reviews.jsonl run=runs/filled-table
train longer.yaml data.train=reviews.jsonl data.valid=reviews.jsonl train=lora run=runs/lora
train tags.yaml
train documents.yaml data.train=reviews.csv run=runs/documents-table
study grid-small.yaml
study grid-small.yaml --report
study grid-small.yaml --report --json
study grid-small.yaml seeds=[1] title=Again
""".splitlines()
"""Each builds on what those before it wrote."""

WRONG = """\
trian generated.yaml
train run=runs/order generated.yaml
train generated.yaml --epochs 2
evaluate runs/generated --output answers.txt
extend bert 96 --method flow --option delta=0.1 --to longer
train squad.yaml data.valid=squad.json
train squad.yaml data.valid=nosuch.json
frobnicate
--verison
train
train --help translatoin
study --help setings
help trian
completion fish
-x
configs nosuchword
configs --jsn
init
init coppy
init minilm
init generated/copy generated.yaml
init generated/copy no/such/place/my.yaml
models flaoter
models --dim 7
models --dim 0
models --heads 12
models --layers -1
models --format xml
models learned --dim many
data multi3k
data multi30k --processes 0
data multi30k --to generated.yaml
train nosuch.yaml
train generated/copy
train configs/generated/copy.yaml
train translation
train runs
train grid-small.yaml
train test.en
train broken.yaml
train empty.yaml
train list.yaml
train tabs.yaml
train generated.yaml modle.position=t5
train generated.yaml model.positoin=t5
train generated.yaml model.position=flaoter
train generated.yaml model.position=
train generated.yaml model.position=[]
train generated.yaml model.position=[t5,t5x]
train generated.yaml model.position_options={delta:1}
train generated.yaml 'model.position_options={delta: a}'
train generated.yaml model.position_options.dleta=0.1
train generated.yaml model.position_options={delta:0.1,
train generated.yaml model.preset=huge
train generated.yaml model.changes.hidden_size=17
train generated.yaml model.changes.hidden_size=0
train generated.yaml model.changes.num_attention_heads=3
train generated.yaml model.changes.dropout=1.5
train generated.yaml model.max_length=-1
train generated.yaml model.max_length=1e99
train generated.yaml 'model.times={mode: sideways}'
train generated.yaml model.position=rotary 'model.times={mode: stretch, max_scale: nan}'
train generated.yaml training.learning_rate=fast
train generated.yaml training.learning_rate=nan
train generated.yaml training.learning_rate=inf
train generated.yaml training.learning_rate=-1
train generated.yaml training.max_steps=0
train generated.yaml training.max_steps=2.5
train generated.yaml training.warmup_steps=-3
train generated.yaml training.lr_scheduler_type=cosin
train generated.yaml training.seed=yes
train generated.yaml training.max_tokens=3
train generated.yaml training.bf16=maybe
train generated.yaml data.problem=copying
train generated.yaml data.lengths=[5,3]
train generated.yaml data.lengths=5
train generated.yaml data.symbols=0
train generated.yaml data.train=many
train generated.yaml run=
train generated.yaml run=test.en
train generated.yaml run=glue
train generated.yaml run=test.en/run
train generated.yaml task=translatoin
train generated.yaml task=translation
train generated.yaml model.position=sinusoidal
train generated.yaml training.seed=7
train generated.yaml --steps 2
train generated.yaml --steps none
train generated.yaml --steps 4 --epochs 2
train generated.yaml --gpus 2
train generated.yaml model.position
train translation.yaml run=runs/new data.train_source=nosuch.en
train translation.yaml run=runs/new data.train_source=glue
train translation.yaml run=runs/new data.valid_target=words.conllu
train translation.yaml run=runs/new data.moses=true data.source=klingon
train translation.yaml run=runs/new data.train_target=empty.yaml
train translation.yaml run=runs/new data.vocabulary_size=10
train translation.yaml run=runs/new decoding.beam=0
train translation.yaml run=runs/new model.init_from=runs/nosuch
train translation.yaml run=runs/new training.warm_start=runs/nosuch
train causal.yaml run=runs/new data.train=nosuch.txt
train causal.yaml run=runs/new data.documents=paragraph
train causal.yaml run=runs/new objective=casual
train tagging.yaml run=runs/new data.train=test.en
train events.yaml run=runs/new data.train=test.en
train documents.yaml run=runs/new data.train=test.en
train digits.yaml run=runs/new data.source=digit
train digits.yaml run=runs/new data.patch_size=3
train cola.yaml run=runs/new data.task=COLA2
train cola.yaml run=runs/new data.folder=nosuch
train cola.yaml run=runs/new model.path=nosuch
train cola.yaml run=runs/new plug.options.delta=-1
train squad.yaml run=runs/new data.train=test.en
train longer.yaml run=runs/new extend.method=yarm
translate
translate runs/nosuch
translate runs/translaton
translate test.en
translate runs
translate runs/generated
translate runs/translation --source nosuch.en
translate runs/translation --source glue
translate runs/translation --source numbers.npz
translate runs/translation --beam 0
translate runs/translation --beam four
translate runs/translation --length-penalty high
translate runs/translation --length-penalty nan
translate runs/translation --device gpu
translate runs/translation --device cuda:9
translate runs/translation --output no/such/place.txt
translate runs/translation --reading group=4
translate runs/translation --reading tmeperature=true
evaluate
evaluate runs/nosuch
evaluate runs/translation
evaluate runs/translation --source test.en
evaluate runs/translation --source test.en --reference documents/good/0.txt
evaluate runs/translation --source test.en --reference test.de --language xx
evaluate runs/translation --source test.en --reference test.de --bins 20,10
evaluate runs/translation --source test.en --reference test.de --window 4
evaluate runs/generated --source test.en
evaluate runs/generated --bins 0,a
evaluate runs/causal --source nosuch
evaluate runs/causal --source test.en --window 0
evaluate runs/causal --source test.en --stride nan
evaluate runs/tagging --source test.en
evaluate runs/events --source events.csv --part all
evaluate runs/digits --source digits --size 0
evaluate runs/squad --source squad.json --threshold high
evaluate runs/squad --source squad.json --threshold nan
predict runs/cola
predict runs/cola --source nosuch.tsv
predict runs/cola --source words.conllu
predict runs/translation --source test.en
extend bert
extend bert 32 --to shorter
extend bert many --to longer
extend nosuch 128 --to longer
extend bert 128 --method yarn --to longer
extend bert 128 --method nosuch --to longer
extend bert 128 --option delta --to longer
extend bert 128 --to bert-128
glue
glue runs/translation
glue runs/nosuch
plot runs/generated
plot runs/generated vectros
plot runs/nosuch vectors
plot runs/generated vectors --output vectors.bmp
plot runs/generated vectors --output no/such/place.png
plot runs/generated vectors --length 0
plot runs/generated vectors --where nowhere
plot runs/alibi flow
plot runs/relative vectors
plot runs/translation attention --text test.en
plot runs/translation reordering --text test.en
plot test.en vectors
plot bert attention --text nosuch.txt
train reviews.yaml run=runs/new data.train=ragged.csv
train reviews.yaml run=runs/new data.train=comma.csv
train reviews.yaml run=runs/new data.train=open.csv
train reviews.yaml run=runs/new data.train=quote.csv
train reviews.yaml run=runs/new data.train=nolabel.csv
train reviews.yaml run=runs/new data.train=onelabel.csv
train reviews.yaml run=runs/new data.train=unique.csv
train reviews.yaml run=runs/new data.train=nameless.csv
train reviews.yaml run=runs/new data.train=twice.csv
train reviews.yaml run=runs/new data.train=header.csv
train reviews.yaml run=runs/new data.train=empty.csv
train reviews.yaml run=runs/new data.train=latin.csv
train reviews.yaml run=runs/new data.train=sheet.csv
train reviews.yaml run=runs/new data.train=plain.csv.gz
train reviews.yaml run=runs/new data.train=cut.csv.xz
train reviews.yaml run=runs/new data.train=broken.jsonl
train reviews.yaml run=runs/new data.train=lacking.jsonl
train reviews.yaml run=runs/new data.train=numbers.jsonl
train reviews.yaml run=runs/new data.train=lists.jsonl
train reviews.yaml run=runs/new data.train=number.json
train reviews.yaml run=runs/new data.train=broken.parquet
train reviews.yaml run=runs/new data.train=nosuch.csv
train reviews.yaml run=runs/new data.train=nosuch.parquet
train reviews.yaml run=runs/new data.train=saved:tset
train reviews.yaml run=runs/new data.train=tables:test
train reviews.yaml run=runs/new data.train=folder
train reviews.yaml run=runs/new data.train=new.txt
train reviews.yaml run=runs/new data.train=hf:a/b/c/d
train reviews.yaml run=runs/new data.columns.text=reviw
train reviews.yaml run=runs/new data.columns.txt=review
train reviews.yaml run=runs/new data.valid=other.csv
train reviews.yaml run=runs/new data.valid_share=0
train reviews.yaml run=runs/new data.long=part
train reviews.yaml run=runs/new data.max_length=7
train reviews.yaml run=runs/new training.lr_scheduler_type=constant training.warmup_steps=5
evaluate runs/reviews --source other.csv
evaluate runs/reviews --source new.txt
evaluate runs/reviews --part all
predict runs/reviews --source nameless.csv
train pairs.yaml run=runs/new data.valid=reviews.csv
train pairs.yaml run=runs/new data.valid=null
train pairs.yaml run=runs/new data.train=train.en
train pairs.yaml run=runs/new data.columns.source=english
train translation.yaml run=runs/new data.columns.source=english
evaluate runs/pairs --source pairs.json --reference test.de
evaluate runs/pairs --source test.en
translate runs/pairs --source nameless.csv
train causal.yaml run=runs/new data.columns.text=body
train causal.yaml run=runs/new data.train=nameless.csv
train tagging.yaml run=runs/new data.train=tags.jsonl
train tags.yaml run=runs/new data.train=untagged.jsonl
train documents.yaml run=runs/new data.train=onelabel.csv
study
study nosuch.yaml
study generated.yaml
study grid-small.yaml seeds=1
study grid-small.yaml seeds=[]
study grid-small.yaml folder=runs/generated --report
study grid-small.yaml folder=runs/none-there --report
study grid-small.yaml models={}
study grid-small.yaml models.x.position=flaoter
study grid-small.yaml budget.cores=0
study grid-small.yaml baseline=t5
study grid-small.yaml metric=bleu
study grid-small.yaml --reprot
study grid-small.yaml settings.training.max_stesp=4
demo --run test.en
demo --steps 3
""".splitlines()

MISSING = {
    "train generated.yaml run=runs/new": "docstring_parser",
    "plot runs/generated vectors": "matplotlib",
    "evaluate runs/translation --source test.en --reference test.de": "sacrebleu",
    "study grid-small.yaml --report": "docstring_parser",
    "completion bash": "shtab",
    "data": "pooch",
}
"""Packages that are not installed, by the command that needs them."""
HOUR = len(RIGHT) + len(WRONG) + len(MISSING)
