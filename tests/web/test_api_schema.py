"""The API conforms to its OpenAPI document."""

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("schemathesis")

import schemathesis
from hypothesis import HealthCheck, Phase, settings

from gumbeltree.web.api import SCHEMA, create_app
from gumbeltree.web.limits import ServerSettings
from tests.models import tiny_model

APP = create_app(
    {"single": tiny_model("single"), "pair": tiny_model("pair")}, ServerSettings(access_log=False)
)
# OpenAPI cannot express that `second` depends on the model, and spans and trees on the words
DEPENDENT = ["/api/parse", "/api/predict", "/api/neighbours"]
CONFIG = schemathesis.Config.from_dict(
    {
        "operations": [
            {
                "include-path": path,
                "checks": {
                    "positive_data_acceptance": {"expected-statuses": ["2xx", "404", "422"]}
                },
            }
            for path in DEPENDENT
        ]
    }
)
schema = schemathesis.openapi.from_asgi(SCHEMA, APP, config=CONFIG)


@schema.parametrize()
@settings(
    max_examples=12,
    derandomize=True,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_conforms_to_the_document(case):
    case.call_and_validate()
