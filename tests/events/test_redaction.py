"""Removing secrets from output that users share."""

from __future__ import annotations

import json
import random
import re
import string
from pathlib import Path

import pytest
from plaunch_events import Redaction, is_secret, redact_command
from plaunch_events.secret_shapes import SHAPES

SECRET_NAMES = """
PGPASSWORD MYSQL_PWD DB_PASS GITHUB_PAT SECRET_KEY_BASE TOKEN_V2 --accessToken --access-token
--dbPassword SSHPASS SSH_PASSPHRASE AWS_SESSION_TOKEN GOOGLE_CREDENTIALS api_keys APIKeys
AccountKey clientSecret GITLAB_TOKEN_2 TOKEN2 PASSWORD_PROD JWT HTTP_COOKIE WANDB_API_KEY KEY
HF_HUB_TOKEN_OLD DJANGO_SECRETS AZURE_STORAGE_KEY authToken x-api-key PASSWD
VAULT_PASSCODE REDISCLI_AUTH HF_TOKENS DB_PASSWORDS DB_CREDS AUTH_HEADER
AZURE_STORAGE_CONNECTION_STRING DOCKER_AUTH_CONFIG TLS_KEY_PEM SENTRY_DSN DATABASE_PASSWORDS
API_TOKENS X-Amz-Signature sig
"""
OTHER_NAMES = """
PWD OLDPWD INIT_CWD tokenizer --num-tokens max_tokens author AUTHOR --bypass forward_passes compass
KEY_FILE AWS_ACCESS_KEY_ID SSL_KEYFILE pad_token_id token_type_ids GIT_ASKPASS PATH pattern patience
token-dropout tokens_per_step keyboard monkey_id hotkeys secretary PASSWORD_FILE secret_name compat
MAX_TOKENS NUM_TOKENS special_tokens TOTAL_TOKENS max_new_tokens CONNECTION_TIMEOUT model_config
sigma design HEADER --tokens MAX_NEW_TOKENS
"""


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("HF_TOKEN", True),
        ("PLAUNCH_ETCD_PASSWORD", True),
        ("AWS_SECRET_ACCESS_KEY", True),
        ("--api-key", True),
        ("--apikey", True),
        ("otel.headers.authorization", True),
        ("--tokenizer", False),
        ("--max-tokens", False),
        ("token_file", False),
        ("MONKEY", False),
        *((name, True) for name in SECRET_NAMES.split()),
        *((name, False) for name in OTHER_NAMES.split()),
    ],
)
def test_names_of_secrets(name, expected):
    assert is_secret(name) is expected


@pytest.mark.parametrize(
    ("environ", "words", "settings"),
    [
        ({"HF_TOKEN": "s3cret/it is"}, [], {}),
        ({}, ["train.py", "--hf-token", "s3cret/it is"], {}),
        ({}, ["train.py", "--hf-token=s3cret/it is"], {}),
        ({}, ["--rdzv-conf=timeout=3,password=s3cret/it is,x=1", "train.py"], {}),
        ({}, [], {"rdzv_configs": {"password": "s3cret/it is"}}),
        ({}, [], {"options": {"event_conf": ["a.key=s3cret/it is"]}}),
    ],
)
def test_values_are_found_where_they_are_given(environ, words, settings):
    redact = Redaction.of_launch(environ, words, settings)
    assert redact(b"it is s3cret/it is!") == b"it is <withheld>!"


def test_values_are_found_as_json_python_and_a_shell_write_them():
    value = 'it\'s "né" \\ or\tnot'
    redact = Redaction([value])
    for text in (value, json.dumps(value), repr(value), f"'{value}'"):
        assert b"<withheld>" in redact(text.encode()), text
        assert b"or" not in redact(text.encode()), text


def test_a_secret_that_is_a_part_of_another_one():
    assert Redaction(["secret", "secret-two"])(b"secret-two secret") == b"<withheld> <withheld>"


def test_short_and_common_values_stay():
    redact = Redaction.of_launch({"KEY": "1", "A_TOKEN": ""}, [], {})
    assert redact(b"step 1 of 10") == b"step 1 of 10"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tcp://10.0.0.1:29500 https://me:pass@host/x", "tcp://10.0.0.1:29500 https://#@host/x"),
        ("a@b:c@d http://host/a@b", "a@b:c@d http://host/a@b"),
        ("git clone https://t0ken@github.com/x", "git clone https://#@github.com/x"),
        ("postgres://u:p@ss@db/x", "postgres://#@db/x"),
        ("postgres://user:a/b@host/db", "postgres://#@host/db"),
        ("http://host:8080/a@b.txt s3://bucket/a@b", "http://host:8080/a@b.txt s3://bucket/a@b"),
    ],
)
def test_credentials_in_addresses(text, expected):
    assert redacted(text) == expected


def redacted(text):
    return Redaction([])(text.encode()).decode().replace("<withheld>", "#")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("DB_PASS=swordfish", "DB_PASS=#"),
        ("export PGPASSWORD='sword fish1'", "export PGPASSWORD='#'"),
        ("GET /x?a=1&token=swordfish&b=2 HTTP/1.1", "GET /x?a=1&token=#&b=2 HTTP/1.1"),
        ("https://h/x?key=swordfish", "https://h/x?key=#"),
        ("Authorization: Basic c3dvcmRmaXNo", "Authorization: Basic #"),
        ("authorization: Bearer swordfish12", "authorization: Bearer #"),
        ("curl -H 'Bearer swordfish12'", "curl -H 'Bearer #'"),
        ('{"accessToken": "swordfish", "b": 1}', '{"accessToken": "#", "b": 1}'),
        (r"{\"password\": \"swordfish\"}", r"{\"password\": \"#\"}"),
        ("password: swordfish", "password: #"),
        ("token: a1b2c3d4", "token: #"),
        ("--api-key=swordfish --x", "--api-key=# --x"),
        ("AccountName=x;AccountKey=abc123==;y", "AccountName=x;AccountKey=#;y"),
        ("it is ghp_" + "a1" * 18, "it is #"),
        ("hf_" + "aB" * 17 + ".", "#."),
        ("AKIA" + "A1" * 8, "#"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.sig_1", "#"),
        ("sk-proj-" + "aB3" * 10, "#"),
        ("token_type=bearer&access_token=swordfish", "token_type=bearer&access_token=#"),
        ("tokenizer=gpt2,hf_token=sw0rdfish", "tokenizer=gpt2,hf_token=#"),
        ("max_tokens=9;api_token=sw0rdfish", "max_tokens=9;api_token=#"),
        (
            "SharedAccessKeyName=root;SharedAccessKey=abc123==",
            "SharedAccessKeyName=root;SharedAccessKey=#",
        ),
        ("+ train.py --password swordfish --x 1", "+ train.py --password # --x 1"),
        ("+ train.py --api-token 'sw0rd fish' -x", "+ train.py --api-token '#' -x"),
        ("error: --token is required", "error: --token is required"),
        ("host=db user=me password=swordfish", "host=db user=me password=#"),
        ("host=db;password=swordfish;user=me", "host=db;password=#;user=me"),
        ("GET /x?X-Amz-Signature=0a1b2c3d&y=1", "GET /x?X-Amz-Signature=#&y=1"),
        ("https://h/x?sv=1&sig=aB%2Bc1d", "https://h/x?sv=1&sig=#"),
        ("Cookie: session=abc; theme=dark", "Cookie: #"),
        ("curl -H 'cookie: a=swordfish'", "curl -H 'cookie: #'"),
        ("{('password', 'swordfish'), ('x', 'y')}", "{('password', '#'), ('x', 'y')}"),
        ('["token", "swordfish"]', '["token", "#"]'),
        (
            "-----BEGIN RSA PRIVATE KEY-----\nMII\n-----END RSA PRIVATE KEY-----",
            "#",
        ),
    ],
)
def test_texts_that_look_like_secrets(text, expected):
    assert redacted(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "out = model(token=next_token, key=self.key_proj(x), password=password)",
        "token=tokens[0], api_key=os.environ.get(name)",
        "KeyError: 'layer.12.weight'; missing key: layer.12.weight",
        "RuntimeError: Unexpected key(s) in state_dict: 'decoder.weight'",
        "token: 50256, tokens: 1234567 tokens/s: 1234567.8",
        "unexpected token: identifier",
        "PWD=/home/user/run tokenizer=sentencepiece pad_token_id=5025600",
        "task-0123456789abcdefghijklmnop loads weights for auth: disabled",
        "step 12: loss 0.7 (passes=1234567)",
    ],
)
def test_ordinary_output_stays(text):
    assert redacted(text) == text


def test_a_command_line():
    words = ["train.py", "--accessToken", "sword fish", "--url=https://x/?token=swordfish", "-k=1"]
    words += ["DB_PASS=swordfish", "--password-file", "here/it/is", "\udcff"]
    assert redact_command(words) == [
        *("train.py", "--accessToken", "<withheld>", "--url=https://x/?token=<withheld>", "-k=1"),
        *("DB_PASS=<withheld>", "--password-file", "here/it/is", "\udcff"),
    ]


# --- generated texts ------------------------------------------------------------------------------

FORMS = """\
@
it is @.
KEY=@
export X='@'
{"x": "@", "y": 1}
https://host/x?a=1&b=@&c=2
requests.get(url, headers={'X': '@'})
"""
NAMES = "HF_TOKEN api_key --password client_secret AWS_SECRET_ACCESS_KEY accessToken db.password"
NAMED = """\
#=@
export #='@'
#: @
"#": "@"
\\"#\\": \\"@\\"
('#', '@')
tokenizer=gpt2,#=@
token_type=bearer&#=@&x=1
max_tokens=9;#=@
key_id=abcdefgh;#=@;y
--# @
--#=@
"""


def characters_of(shape):
    """Return what the set of a shape has."""
    pattern = re.compile(f"[{shape.characters}]")
    return [each for each in map(chr, range(33, 127)) if pattern.fullmatch(each)]


def generated():
    """Yield texts, each with the secret in it."""
    chance = random.Random(1)
    for shape in SHAPES:
        for form in FORMS.splitlines():
            size = shape.shortest + chance.randrange(3)
            secret = shape.begin + "".join(chance.choices(characters_of(shape), k=size))
            yield form.replace("@", secret), secret
    for name in NAMES.split():
        for form in NAMED.splitlines():
            secret = "".join(chance.choices(string.ascii_letters, k=9)) + "7"
            given = name.lstrip("-") if form.startswith("--") else name
            yield form.replace("#", given).replace("@", secret), secret


def test_generated_secrets_are_removed():
    texts = list(generated())
    assert len(texts) > 500
    missed = [text for text, secret in texts if secret in redacted(text)]
    assert missed == []


# What training scripts print, with `@` for numbers and `#` for words.
ORDINARY = Path(__file__).parent / "logs/ordinary.txt"


def test_ordinary_logs_stay():
    """Of 10,000 lines of training logs, none is changed."""
    chance = random.Random(2)
    words = "bert llama layer_norm attention mlp wmt14 imagenet train validation cosine".split()

    def fill(match):
        return chance.choice(words) if match[0] == "#" else str(chance.randrange(10**7))

    templates = ORDINARY.read_text().splitlines()
    lines = [re.sub("[@#]", fill, chance.choice(templates)) for _ in range(10_000)]
    changed = [line for line in lines if redacted(line) != line]
    assert changed == []
