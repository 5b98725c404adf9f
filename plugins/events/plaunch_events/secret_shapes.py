"""Secrets that are recognized by their shape: how they begin, and how they continue.

The beginnings and lengths are those of gitleaks (config/gitleaks.toml in its repository), a list of
rules that is kept up to date, and of the providers' own documentation. Rules that need a keyword
nearby are left to names (`redaction.is_secret`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# Sets of characters.
_LETTERS = "A-Za-z0-9"
_WORDS = "A-Za-z0-9_"
_URL = "A-Za-z0-9_-"
_BASE64 = "A-Za-z0-9+/"
_HEX = "a-f0-9"
_CAPITALS = "A-Z0-9"


@dataclass(frozen=True)
class SecretShape:
    """How the secrets of one provider look.

    Args:
        provider: who issues them.
        begin: their first characters.
        characters: the set of the others, as between the brackets of a regular expression.
        shortest: the least number of others.
    """

    provider: str
    begin: str
    characters: str
    shortest: int

    @property
    def pattern(self) -> bytes:
        """A regular expression that matches them."""
        rest = rf"[{self.characters}]{{{self.shortest},}}"
        return (re.escape(self.begin) + rest).encode()


def _shapes(provider: str, begins: str, characters: str, shortest: int) -> list[SecretShape]:
    return [SecretShape(provider, begin, characters, shortest) for begin in begins.split()]


SHAPES: tuple[SecretShape, ...] = (
    *_shapes("Adobe", "p8e-", _LETTERS, 32),
    *_shapes("age", "AGE-SECRET-KEY-1", _CAPITALS, 58),
    *_shapes("Alibaba", "LTAI", _LETTERS, 20),
    *_shapes("Anthropic, OpenAI", "sk-", _URL, 20),
    *_shapes("Artifactory", "AKCp", _LETTERS, 60),
    *_shapes("Atlassian", "ATATT3", "=" + _URL, 100),
    *_shapes("AWS", "AKIA ASIA ABIA ACCA", _CAPITALS, 16),
    *_shapes("Clojars", "CLOJARS_", _LETTERS, 60),
    *_shapes("Databricks", "dapi", _HEX, 32),
    *_shapes("DigitalOcean", "doo_v1_ dop_v1_ dor_v1_", _HEX, 64),
    *_shapes("Docker", "dckr_pat_ dckr_oat_", _URL, 20),
    *_shapes("Doppler", "dp.pt. dp.st. dp.ct. dp.sa.", _LETTERS + ".", 40),
    *_shapes("Duffel", "duffel_test_ duffel_live_", "=" + _URL, 43),
    *_shapes("Dynatrace", "dt0c01.", _LETTERS + ".", 80),
    *_shapes("EasyPost", "EZAK EZTK", _LETTERS, 54),
    *_shapes("Flutterwave", "FLWSECK_TEST- FLWSECK-", _URL, 12),
    *_shapes("Fly.io", "fo1_ fm1a_ fm1r_ fm2_", _BASE64 + "_-", 40),
    *_shapes("Frame.io", "fio-u-", "=" + _URL, 64),
    *_shapes("GitHub", "ghp_ gho_ ghu_ ghs_ ghr_", _LETTERS, 20),
    *_shapes("GitHub", "github_pat_", _WORDS, 20),
    *_shapes(
        "GitLab",
        "glpat- gldt- glrt- glcbt- glptt- glft- glimt- glagent- glsoat- gloas- GR1348941",
        _URL,
        16,
    ),
    *_shapes("Google", "AIza", _URL, 35),
    *_shapes("Google", "ya29. GOCSPX-", _URL, 20),
    *_shapes("Grafana", "glsa_ glc_", _BASE64 + "_=", 32),
    *_shapes("Groq", "gsk_", _LETTERS, 40),
    *_shapes("Harness", "pat. sat.", _LETTERS + ".", 60),
    *_shapes("Vault", "hvs. hvb. hvr.", _URL, 24),
    *_shapes("Heroku", "HRKU-", _URL, 36),
    *_shapes("Hugging Face", "hf_ api_org_", _LETTERS, 20),
    *_shapes("Infracost", "ico-", _LETTERS, 32),
    *_shapes("LangSmith", "lsv2_pt_ lsv2_sk_", _WORDS, 32),
    *_shapes("Linear", "lin_api_ lin_oauth_", _LETTERS, 40),
    *_shapes("New Relic", "NRAK- NRJS- NRII-", _URL, 19),
    *_shapes("Notion", "ntn_", _LETTERS, 40),
    *_shapes("npm", "npm_", _LETTERS, 30),
    *_shapes("NVIDIA", "nvapi-", _URL, 40),
    *_shapes("OpenShift", "sha256~", _URL, 43),
    *_shapes("Perplexity", "pplx-", _LETTERS, 40),
    *_shapes("Pinecone", "pcsk_", _WORDS, 40),
    *_shapes("PlanetScale", "pscale_tkn_ pscale_pw_ pscale_oauth_", "=." + _URL, 32),
    *_shapes("Postman", "PMAK-", _URL, 50),
    *_shapes("Prefect", "pnu_ pnb_", _LETTERS, 36),
    *_shapes("Pulumi", "pul-", _HEX, 40),
    *_shapes("PyPI", "pypi-", _URL, 40),
    *_shapes("ReadMe", "rdme_", _LETTERS, 70),
    *_shapes("Replicate", "r8_", _LETTERS, 37),
    *_shapes("RubyGems", "rubygems_", _HEX, 48),
    *_shapes("SendGrid", "SG.", "=." + _URL, 40),
    *_shapes("Sendinblue", "xkeysib-", _URL, 60),
    *_shapes("Sentry", "sntrys_ sntryu_", _BASE64 + "_=", 60),
    *_shapes("Shippo", "shippo_live_ shippo_test_", _HEX, 40),
    *_shapes("Shopify", "shpat_ shpca_ shppa_ shpss_", _LETTERS, 32),
    *_shapes("Slack", "xoxa- xoxb- xoxe- xoxo- xoxp- xoxr- xoxs- xapp-", _URL, 10),
    *_shapes("Slack", "hooks.slack.com/services/", _BASE64 + "_-", 8),
    *_shapes("Square", "sq0atp- sq0csp-", _URL, 22),
    *_shapes("Stripe", "sk_live_ sk_test_ rk_live_ rk_test_", _LETTERS, 10),
    *_shapes("Stripe", "whsec_", _BASE64, 32),
    *_shapes("Together", "tgp_v1_", _URL, 40),
    *_shapes("Weights & Biases", "wandb_v1_", _WORDS, 40),
    *_shapes("xAI", "xai-", _LETTERS, 70),
    *_shapes("Yandex", "AQVN", _URL, 35),
)
