"""The manifests in samples/cluster/kubernetes against schemas.

Those of JobSet, TrainJob, TrainingRuntime and of all core kinds are the generated models that Kubeflow Trainer publishes.  For MPIJob and PyTorchJob
there is no package that is small enough to require: the fields around their pods are written down here, from the operators' types, and the PyTorchJob was
compared with the generated model of kubeflow-training 1.9.4, in which it loses no field.
"""

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

FOLDER = Path(__file__).resolve().parents[3] / "samples" / "cluster" / "kubernetes"
DOCUMENTS = [
    pytest.param(document, id=f"{path.stem}-{number}-{document['kind']}")
    for path in sorted(FOLDER.glob("*.yaml"))
    for number, document in enumerate(yaml.safe_load_all(path.read_text()))
]

_MODELS = {
    "JobSet": "jobset_v1alpha2_job_set.JobsetV1alpha2JobSet",
    "TrainJob": "trainer_v1alpha1_train_job.TrainerV1alpha1TrainJob",
    "TrainingRuntime": "trainer_v1alpha1_training_runtime.TrainerV1alpha1TrainingRuntime",
}
_POD = "io_k8s_api_core_v1_pod_template_spec.IoK8sApiCoreV1PodTemplateSpec"
_CLAIM = "io_k8s_api_core_v1_persistent_volume_claim_spec.IoK8sApiCoreV1PersistentVolumeClaimSpec"


def _job(version: str, kind: str, replicas: str, names: list[str], more: dict[str, Any]) -> dict[str, Any]:
    """The schema of a job of Kubeflow whose replicas are pods; its clients require `runPolicy`."""
    replica = {
        "type": "object",
        "additionalProperties": False,
        "required": ["template"],
        "properties": {
            "replicas": {"type": "integer", "minimum": 1},
            "restartPolicy": {"enum": ["Always", "OnFailure", "Never", "ExitCode"]},
            "template": {"type": "object"},
        },
    }
    return {
        "type": "object",
        "additionalProperties": False,
        "required": ["apiVersion", "kind", "metadata", "spec"],
        "properties": {
            "apiVersion": {"const": version},
            "kind": {"const": kind},
            "metadata": {"type": "object", "required": ["name"]},
            "spec": {
                "type": "object",
                "additionalProperties": False,
                "required": ["runPolicy", replicas],
                "properties": {
                    **more,
                    "runPolicy": {
                        "type": "object",
                        "additionalProperties": False,
                        "properties": {
                            "cleanPodPolicy": {"enum": ["None", "Running", "All"]},
                            "ttlSecondsAfterFinished": {"type": "integer"},
                            "activeDeadlineSeconds": {"type": "integer"},
                            "backoffLimit": {"type": "integer"},
                            "suspend": {"type": "boolean"},
                            "schedulingPolicy": {"type": "object"},
                            "managedBy": {"type": "string"},
                        },
                    },
                    replicas: {
                        "type": "object",
                        "additionalProperties": False,
                        "required": names,
                        "properties": dict.fromkeys(names, replica),
                    },
                },
            },
        },
    }


_SCHEMAS = {
    "MPIJob": _job(
        "kubeflow.org/v2beta1",
        "MPIJob",
        "mpiReplicaSpecs",
        ["Launcher", "Worker"],
        {
            "slotsPerWorker": {"type": "integer", "minimum": 1},
            "sshAuthMountPath": {"type": "string"},
            "mpiImplementation": {"enum": ["OpenMPI", "Intel", "MPICH"]},
            "launcherCreationPolicy": {"enum": ["AtStartup", "WaitForWorkersReady"]},
            "runLauncherAsWorker": {"type": "boolean"},
        },
    ),
    "PyTorchJob": _job(
        "kubeflow.org/v1",
        "PyTorchJob",
        "pytorchReplicaSpecs",
        ["Master", "Worker"],
        {"nprocPerNode": {"type": "string"}, "elasticPolicy": {"type": "object"}},
    ),
}


def model_named(name: str) -> Any:
    """A generated model."""
    pytest.importorskip("kubeflow_trainer_api", reason="kubeflow-trainer-api is not installed")
    module, _, cls = name.partition(".")
    return getattr(import_module(f"kubeflow_trainer_api.models.{module}"), cls)


def check(name: str, document: dict[str, Any]) -> None:
    """A document has the types of a model and nothing that the model does not know: that would be lost on the way back."""
    assert model_named(name).from_dict(document).to_dict() == document


def templates_in(document: Any) -> Iterator[dict[str, Any]]:
    """Every pod of a document."""
    if isinstance(document, dict):
        spec = document.get("spec")
        if isinstance(spec, dict) and "containers" in spec:
            yield document
        for value in document.values():
            yield from templates_in(value)
    elif isinstance(document, list):
        for value in document:
            yield from templates_in(value)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_manifest_fits_its_schema(document: dict[str, Any]) -> None:
    """Kinds, fields and types; each pod by itself as well."""
    kind = document["kind"]
    if kind in _MODELS:
        check(_MODELS[kind], document)
    elif kind in _SCHEMAS:
        jsonschema.validate(document, _SCHEMAS[kind])
    elif kind == "PersistentVolumeClaim":
        check(_CLAIM, document["spec"])
    elif kind == "Deployment":
        labels = document["spec"]["template"]["metadata"]["labels"]
        assert document["spec"]["selector"]["matchLabels"] == labels
    else:
        assert kind == "Service"
        assert document["spec"]["ports"][0]["targetPort"] == "http"
    for template in templates_in(document):
        check(_POD, template)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_volumes_that_are_mounted_are_there(document: dict[str, Any]) -> None:
    """No schema says so."""
    for template in templates_in(document):
        spec = template["spec"]
        there = {volume["name"] for volume in spec.get("volumes", ())}
        mounted = {
            mount["name"]
            for container in (*spec["containers"], *spec.get("initContainers", ()))
            for mount in container.get("volumeMounts", ())
        }

        assert mounted == there


def test_every_sender_finds_the_collector() -> None:
    """By the name and the port of its service."""
    documents: list[Any] = [parameter.values[0] for parameter in DOCUMENTS]
    services = {
        each["metadata"]["name"]: each["spec"]["ports"][0]["port"] for each in documents if each["kind"] == "Service"
    }
    asked = [
        container["args"]
        for document in documents
        for template in templates_in(document)
        for container in (*template["spec"]["containers"], *template["spec"].get("initContainers", ()))
        if "http://tlkit-collector:8060" in container["args"]
    ]

    assert services == {"tlkit-collector": 8060, "tlkit-dashboard": 8050}
    assert len(asked) >= 6


def test_an_unknown_field_is_found() -> None:
    """The check can fail."""
    pod = {"spec": {"containers": [{"name": "a", "image": "b", "comand": ["c"]}]}}
    with pytest.raises(AssertionError):
        check(_POD, pod)
