"""A cluster for tests: an API server with state, controllers, and a kubelet that runs processes.

It is not Kubernetes. It has what `--on=kubernetes` uses, as far as the documentation describes it.
"""

from __future__ import annotations

import copy
import json
import secrets
import threading
import uuid
import warnings
from http.server import ThreadingHTTPServer

from helpers.kubelet import Pod, now
from helpers.kubernetes_server import ApiHandler, Refused

INDEX = "batch.kubernetes.io/job-completion-index"
RESERVED = {f"PET_{n}" for n in "NNODES NPROC_PER_NODE NODE_RANK MASTER_ADDR MASTER_PORT".split()}
KINDS = {
    "secrets": "Secret", "services": "Service", "jobs": "Job", "jobsets": "JobSet",
    "trainjobs": "TrainJob",
}  # fmt: skip
_LIST_WAIT = 20.0  # seconds
VERSION = "1.37.0"  # of the schemas that objects are checked with


class FakeCluster:
    """Args:
    network: a `helpers.network.Network` with a node for each pod, or None if none runs.
    folder: for files, and the working folder of containers.
    """

    namespaces = ("default", "team")
    images = ("train:1", "root:1")
    root_images = ("root:1",)  # those without a USER

    def __init__(self, folder, network=None):
        self.folder, self._network = folder, network
        self.lock = threading.RLock()
        self.objects = {}  # by plural and name
        self.pods = []
        self.every_pod = []
        self.events = []
        self.forbidden = set()  # such as "create secrets"
        self.missing = set()  # plurals that are not installed
        self.requests = []
        self.listed = threading.Condition(self.lock)  # notified after each list of pods
        self.rights_used = set()  # group, resource, verb
        self.is_locked = False  # no credentials are accepted
        self.cut_logs_after = None  # lines, after which a connection ends once
        self.is_closed = False
        self.fails = 0  # requests to answer with 503
        self.ignored = set()  # fields of specifications that the server does not know
        self.train_job_limit = 6  # restarts of the containers of a TrainJob, in all

        class Handler(ApiHandler):
            cluster = self

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        self.kubeconfig = folder / "kubeconfig"
        named = {
            "clusters": {"cluster": {"server": self.url}},
            "users": {"user": {"token": "t"}},
            "contexts": {"context": {"cluster": "x", "user": "x", "namespace": "team"}},
        }
        config = {name: [{"name": "x", **entry}] for name, entry in named.items()}
        config |= {"apiVersion": "v1", "kind": "Config", "current-context": "x"}
        self.kubeconfig.write_text(json.dumps(config))

    def close(self):
        self.is_closed = True
        self._server.shutdown()
        self._server.server_close()
        for pod in self.every_pod:
            pod.kill()

    def wait_for_list(self):
        """Wait until a client has got all pods as they are now, or for a while."""
        with self.listed:
            self.listed.wait(_LIST_WAIT)

    def get(self, plural, name):
        with self.lock:
            return self.objects.get((plural, name))

    # --- requests ---------------------------------------------------------------------------------

    def create(self, plural, namespace, body, is_trial):
        kind = KINDS[plural]
        if namespace not in self.namespaces:
            raise Refused(404, f'namespaces "{namespace}" not found')
        if plural in ("jobs", "secrets", "services"):
            import kubernetes_validate

            # It imports what is deprecated.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    kubernetes_validate.validate(body, VERSION, strict=True)
                except kubernetes_validate.ValidationError as error:
                    text = f"{kind} in version v1 cannot be handled: {error.message}"
                    raise Refused(400, text) from error
        if plural == "trainjobs":
            names = {entry["name"] for entry in body["spec"]["trainer"].get("env", [])}
            if names & RESERVED:
                raise Refused(422, f"must not have reserved envs: {sorted(names & RESERVED)}")
        body = copy.deepcopy(body)
        body["metadata"] |= {"uid": str(uuid.uuid4()), "namespace": namespace}
        for name in self.ignored:
            body.get("spec", {}).pop(name, None)
        if is_trial:
            return body
        with self.lock:
            self.objects[plural, body["metadata"]["name"]] = body
            start = {"jobs": self._start_job, "jobsets": self._start_job_set}
            start.get(plural, self._start_train_job if plural == "trainjobs" else id)(body)
        return body

    def delete(self, plural, name):
        with self.lock:
            found = self.objects.get((plural, name))
            if found is None:
                raise Refused(404, f'{plural} "{name}" not found')
            found["metadata"]["deletionTimestamp"] = now()
            self._delete_owned(found)
        self._collect()

    def _owned(self, owner):
        uid = owner["metadata"]["uid"]
        for key, each in self.objects.items():
            if any(ref["uid"] == uid for ref in each["metadata"].get("ownerReferences", ())):
                yield key, each

    def _delete_owned(self, owner):
        for _, each in self._owned(owner):
            each["metadata"]["deletionTimestamp"] = now()
            self._delete_owned(each)
        for pod in self.pods:
            if pod.manifest["metadata"]["labels"].get("owner") == owner["metadata"]["uid"]:
                pod.stop()

    def _collect(self):
        """Remove objects that are deleted and own no pod any more."""
        with self.lock:
            deleted = {
                k: v for k, v in self.objects.items() if "deletionTimestamp" in v["metadata"]
            }
            uids = {each["metadata"]["uid"] for each in deleted.values()}
            for pod in list(self.pods):
                if pod.is_ended and pod.manifest["metadata"]["labels"]["owner"] in uids:
                    self.pods.remove(pod)
            if not any(p.manifest["metadata"]["labels"]["owner"] in uids for p in self.pods):
                for key in deleted:
                    del self.objects[key]

    # --- controllers ------------------------------------------------------------------------------

    def _start_train_job(self, train_job):
        trainer, name = train_job["spec"]["trainer"], train_job["metadata"]["name"]
        rank = f"metadata.annotations['{INDEX}']"
        env = [
            *trainer.get("env", []),
            {"name": "PET_NNODES", "value": str(trainer["numNodes"])},
            {"name": "PET_NPROC_PER_NODE", "value": "auto"},
            {"name": "PET_NODE_RANK", "valueFrom": {"fieldRef": {"fieldPath": rank}}},
            {"name": "PET_MASTER_ADDR", "value": f"{name}-node-0-0.{name}"},
            {"name": "PET_MASTER_PORT", "value": "29500"},
        ]
        container = {"name": "node", "image": trainer["image"], "env": env}
        container |= {key: trainer[key] for key in ("command", "args")}
        job = {
            "completionMode": "Indexed",
            "completions": trainer["numNodes"],
            "backoffLimit": self.train_job_limit,
            # A JobSet sets this, if its template does not: the runtime torch-distributed.
            "template": {"spec": {"restartPolicy": "OnFailure", "containers": [container]}},
        }
        spec = {"replicatedJobs": [{"name": "node", "template": {"spec": job}}]}
        self._own(train_job, "jobsets", name, {"spec": spec}, {})

    def _start_job_set(self, job_set):
        name = job_set["metadata"]["name"]
        for each in job_set["spec"]["replicatedJobs"]:
            body = copy.deepcopy(each["template"])
            body["spec"]["template"]["spec"]["subdomain"] = name
            labels = {
                "jobset.sigs.k8s.io/jobset-name": name,
                "jobset.sigs.k8s.io/replicatedjob-name": each["name"],
            }
            self._own(job_set, "jobs", f"{name}-{each['name']}-0", body, labels)

    def _own(self, owner, plural, name, body, labels):
        body["metadata"] = {
            "name": name,
            "uid": str(uuid.uuid4()),
            "labels": labels,
            "ownerReferences": [{"uid": owner["metadata"]["uid"]}],
        }
        self.objects[plural, name] = body
        (self._start_job if plural == "jobs" else self._start_job_set)(body)

    def _start_job(self, job):
        for index in range(job["spec"]["completions"]):
            self._start_pod(job, index)

    def _start_pod(self, job, index):
        name, uid = job["metadata"]["name"], job["metadata"]["uid"]
        spec = copy.deepcopy(job["spec"]["template"]["spec"])
        spec["hostname"] = f"{name}-{index}"
        for container in spec["containers"]:
            text = f"metadata.annotations['{INDEX}']"
            source = {"fieldRef": {"fieldPath": text}}
            container["env"].append({"name": "JOB_COMPLETION_INDEX", "valueFrom": source})
        manifest = {
            "metadata": {
                "name": f"{name}-{index}-{secrets.token_hex(3)[:5]}",
                "creationTimestamp": now(9),
                "labels": {
                    **job["spec"]["template"].get("metadata", {}).get("labels", {}),
                    **job["metadata"].get("labels", {}),
                    "batch.kubernetes.io/job-name": name,
                    "batch.kubernetes.io/controller-uid": uid,
                    "owner": uid,
                },
                "annotations": {INDEX: str(index)},
            },
            "spec": spec,
            "status": {"phase": "Pending"},
        }
        within = self._network.within(index) if self._network else ()
        pod = Pod(self, manifest, within, self.folder)
        self.pods.append(pod)
        self.every_pod.append(pod)
        pod.thread.start()

    def hosts_of(self, pod):
        """Return /etc/hosts of a pod, in which the others are, as there is no DNS."""
        spec = pod.manifest["spec"]
        lines = ["# Kubernetes-managed hosts file.", "127.0.0.1 localhost"]
        for other in self.pods:
            host, service = other.manifest["spec"]["hostname"], spec["subdomain"]
            index = int(other.manifest["metadata"]["annotations"][INDEX])
            full = f"{host}.{service}.team.svc.cluster.local"
            if other is pod:
                lines.append(f"{self._network.address(index)} {full} {host}")
            lines.append(f"{self._network.address(index)} {host}.{service}")
        return "\n".join(lines) + "\n"

    def container_restarts(self, pod):
        """End the Job if too many containers were restarted."""
        with self.lock:
            uid = pod.manifest["metadata"]["labels"]["owner"]
            own = [p for p in self.pods if p.manifest["metadata"]["labels"]["owner"] == uid]
            job = next(each for each in self.objects.values() if each["metadata"]["uid"] == uid)
            if sum(each.restarts for each in own) >= job["spec"]["backoffLimit"]:
                job["target"] = ("Failed", "BackoffLimitExceeded")
                for each in own:
                    each.stop()

    def pod_ended(self, pod):
        """Do what the controller of Jobs does."""
        if self.is_closed:
            return
        with self.lock:
            uid = pod.manifest["metadata"]["labels"]["owner"]
            jobs = [each for each in self.objects.values() if each["metadata"]["uid"] == uid]
            if not jobs:  # deleted
                return
            (job,) = jobs
            own = [p for p in self.pods if p.manifest["metadata"]["labels"]["owner"] == uid]
            if "deletionTimestamp" not in job["metadata"] and "status" not in job:
                self._decide(job, pod, own)
            if job.get("target") and pod.manifest["spec"]["restartPolicy"] != "Never":
                self.pods.remove(pod)  # as it has not failed before
            if job.get("target") and all(each.is_ended for each in own):
                self._finish(job, *job.pop("target"))
        self._collect()

    def _decide(self, job, pod, own):
        spec = job["spec"]
        if pod.code == 0:
            ended = [each.manifest for each in own if each.is_ended and each.code == 0]
            done = {manifest["metadata"]["annotations"][INDEX] for manifest in ended}
            if len(done) == spec["completions"]:
                self._finish(job, "Complete", "")
            return
        for rule in spec.get("podFailurePolicy", {}).get("rules", ()):
            codes = rule.get("onExitCodes")
            if codes and codes["operator"] == "NotIn" and pod.code not in codes["values"]:
                job["target"] = ("Failed", "PodFailurePolicy")
        index = pod.manifest["metadata"]["annotations"][INDEX]
        failures = job.setdefault("failures", {})
        failures[index] = failures.get(index, 0) + 1
        if failures[index] > spec.get("backoffLimitPerIndex", spec.get("backoffLimit")):
            job.setdefault("target", ("Failed", "MaxFailedIndexesExceeded"))
        if "target" in job:
            for each in own:
                each.stop()
        else:
            pod.manifest["metadata"]["labels"]["replaced"] = "yes"
            self._start_pod(job, int(pod.manifest["metadata"]["annotations"][INDEX]))

    def _finish(self, each, kind, reason):
        names = {"jobsets": {"Complete": "Completed"}}
        plural = next(key[0] for key, value in self.objects.items() if value is each)
        condition = {"type": names.get(plural, {}).get(kind, kind), "status": "True"}
        each["status"] = {"conditions": [condition | ({"reason": reason} if reason else {})]}
        uids = {ref["uid"] for ref in each["metadata"].get("ownerReferences", ())}
        for owner in list(self.objects.values()):
            if owner["metadata"]["uid"] in uids:
                self._finish(owner, kind, reason)
