# Prepares the files on which plans/paper.toml, plans/peers.toml and plans/ablations.toml train.
#
#     make -f benchmarks/prepare.mk --jobs 2
#
# downloads SNLI, SST and GloVe first. To use your own copies, or to prepare some files only:
#
#     make -f benchmarks/prepare.mk SNLI=snli_1.0 GLOVE_6B=glove.6B.zip data/snli-100d.safetensors

GUMBELTREE ?= .venv/bin/gumbeltree
SNLI ?= $(shell $(GUMBELTREE) data get snli)
SST ?= $(shell $(GUMBELTREE) data get sst)
GLOVE_6B ?= $(shell $(GUMBELTREE) data get glove.6B)
GLOVE_840B ?= $(shell $(GUMBELTREE) data get glove.840B)

FILES := snli-100d snli-300d snli-cased snli-60-words snli-silver \
	$(foreach x,sst2 sst5,$x $x-parts $x-cased $x-trees $x-nodes rntn-$x byte-mlstm-small-$x)

prepare = mkdir -p $(@D) && $(GUMBELTREE) data prepare $1 --data $2 $(if $3,--vectors $3) --out $@

.DELETE_ON_ERROR:
.PHONY: all
all: $(FILES:%=data/%.safetensors) data/snli/snli_1.0_test.jsonl

data/snli-100d.safetensors: ; $(call prepare,snli-100d,$(SNLI),$(GLOVE_6B))
data/snli-300d.safetensors: ; $(call prepare,snli-300d,$(SNLI),$(GLOVE_840B))
data/snli-cased.safetensors: ; $(call prepare,nse,$(SNLI),$(GLOVE_840B))
data/snli-60-words.safetensors: ; $(call prepare,shortcut-stacked,$(SNLI),$(GLOVE_840B))

data/sst%-parts.safetensors: ; $(call prepare,sst$*-tuned,$(SST),$(GLOVE_840B) --more-vectors $(GLOVE_6B))
data/sst%-cased.safetensors: ; $(call prepare,nse-sst$*,$(SST),$(GLOVE_840B))
data/sst%-trees.safetensors: ; $(call prepare,constituency-sst$*-matched,$(SST),$(GLOVE_840B))
data/sst%-nodes.safetensors: ; $(call prepare,constituency-sst$*,$(SST),$(GLOVE_840B))
data/sst%.safetensors: ; $(call prepare,sst$*,$(SST),$(GLOVE_840B))
data/rntn-%.safetensors: ; $(call prepare,rntn-$*,$(SST))
data/byte-mlstm-small-%.safetensors: ; $(call prepare,byte-mlstm-small-$*,$(SST))

# SPINN learns from silver parses: a parser, trained on SNLI's development file alone, parses all files
PARSER := runs/parser/result.json
SILVER := $(patsubst %,data/silver/snli_1.0_%.jsonl,train dev test)

$(PARSER):
	$(GUMBELTREE) train parser --data $(SNLI) --vectors $(GLOVE_6B) --out $(@D) --resume

data/silver/%.jsonl: data/snli/%.jsonl $(PARSER)
	mkdir -p $(@D) && $(GUMBELTREE) data parse $(dir $(PARSER)) $< --out $@

data/snli-silver.safetensors: $(SILVER)
	$(call prepare,spinn-pi,data/silver,$(GLOVE_840B))

# plain, gzipped, or a part of the file, such as snli_1.0_train.part.jsonl.gz
data/snli/%.jsonl:
	mkdir -p $(@D)
	gzip -cdf $(firstword $(wildcard $(SNLI)/$*.jsonl $(SNLI)/$*.jsonl.gz $(SNLI)/$**.jsonl*)) > $@
