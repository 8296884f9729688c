"""What counts as a credential, and that it is hidden."""

from __future__ import annotations

import pytest

from estimator import secrets


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("export WANDB_API_KEY=cafe0123", "cafe0123"),
        ('HF_TOKEN="with blanks 1" python x.py', "with blanks 1"),
        ("python train.py --api-key Ab12cd34 --lr 1", "Ab12cd34"),
        ("python train.py --wandb_key='Ab12cd34'", "Ab12cd34"),
        ("wandb login 0123456789abcdef", "0123456789abcdef"),
        ("curl -H 'Authorization: Bearer abc.DEF' x", "abc.DEF"),
        ("git clone https://me:Passw0rd@host/x", "Passw0rd"),
        ("echo hf_AAAABBBBCCCCDDDDEEEE", "hf_AAAABBBBCCCCDDDDEEEE"),
    ],
)
def test_what_is_a_credential(text: str, found: str) -> None:
    assert secrets.of_text(text) == {found}


@pytest.mark.parametrize(
    "text",
    [
        "python train.py --tokenizer GPT2-medium --max_tokens=2048000 --sort-key time --key 3",
        "export TOKENIZERS_PARALLELISM=false11 SSH_KEY=/home/u/.ssh/id HF_TOKEN=$TOKEN1 HF_TOKEN=$(cat token1)",
        "huggingface-cli login --token $HF_TOKEN",
        "python extract.py --use_last_token --max_seq_len 4090",
        "# the key to success1 is the author",
    ],
)
def test_what_is_none(text: str) -> None:
    assert secrets.of_text(text) == set()


def test_values_of_variables_are_hidden_in_all_texts() -> None:
    hidden = secrets.of_environment({"MY_SECRET": "Hush-hush", "AUTHOR": "Somebody1", "AWS_KEY_ID": "AKIA12"})
    assert hidden == {"Hush-hush", "AKIA12"}
    told = {"notes": ["not Hush-hush but AKIA123"], "bytes": 7, "Hush-hush": None}
    assert secrets.hide_in(told, hidden) == {"notes": ["not ... but ...3"], "bytes": 7, "Hush-hush": None}
