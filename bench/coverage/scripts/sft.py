"""Supervised fine-tuning with trl's SFTTrainer over tokenised rows."""

import torch
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer


def tokenizer() -> PreTrainedTokenizerFast:
    words = Tokenizer(models.WordLevel({"<unk>": 0, "<eos>": 1, "a": 2, "b": 3}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="<unk>", eos_token="<eos>", pad_token="<eos>"
    )


def main() -> None:
    config = LlamaConfig(
        hidden_size=512, intermediate_size=1408, num_hidden_layers=4, num_attention_heads=8, vocab_size=8192
    )
    rows = torch.randint(2, config.vocab_size, (32, 128)).tolist()
    trainer = SFTTrainer(
        model=AutoModelForCausalLM.from_config(config),
        args=SFTConfig(
            output_dir="out", per_device_train_batch_size=4, max_length=128, bf16=True, report_to=[]
        ),
        train_dataset=Dataset.from_dict({"input_ids": rows}),
        processing_class=tokenizer(),
        peft_config=LoraConfig(r=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"),
    )
    trainer.train()


if __name__ == "__main__":
    main()
