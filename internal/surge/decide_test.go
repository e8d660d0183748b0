package surge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/cordon"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
	"github.com/slipway-dev/slipway/internal/testing/virtual"
)

func TestDecide(t *testing.T) {
	neverAllows := &kubeapi.PodDisruptionBudget{ObjectMeta: kubeapi.ObjectMeta{Name: "never"}}
	neverAllows.Status.ExpectedPods, neverAllows.Status.DesiredHealthy = 3, 3
	allowsUnready := &kubeapi.PodDisruptionBudget{ObjectMeta: kubeapi.ObjectMeta{Name: "unready"}, Status: neverAllows.Status}
	allowsUnready.Spec.UnhealthyPodEvictionPolicy = "AlwaysAllow"
	allowsLater := &kubeapi.PodDisruptionBudget{ObjectMeta: kubeapi.ObjectMeta{Name: "later"}}
	allowsLater.Status.ExpectedPods, allowsLater.Status.DesiredHealthy, allowsLater.Status.CurrentHealthy = 3, 2, 2
	claim := func(c *cluster, readOnly bool, modes ...string) {
		c.claims["data"] = &kubeapi.PersistentVolumeClaim{ObjectMeta: kubeapi.ObjectMeta{Name: "data"}}
		c.claims["data"].Spec.AccessModes = modes
		c.pods[leaving].Spec.Volumes = []kubeapi.Volume{{Name: "data", PersistentVolumeClaim: &kubeapi.ClaimVolume{ClaimName: "data", ReadOnly: readOnly}}}
	}
	annotate := func(m *kubeapi.ObjectMeta, value string) {
		if m.Annotations == nil {
			m.Annotations = map[string]string{}
		}
		m.Annotations[Annotation] = value
	}
	ofKind := func(c *cluster, kind string) {
		for _, p := range c.pods {
			p.OwnerReferences[0].Kind = kind
		}
	}
	readyAfter := func(c *cluster, took time.Duration) {
		p := c.pods[leaving]
		p.Status.Conditions[0].LastTransitionTime = p.CreationTimestamp.Add(took)
	}
	now := time.Now()
	denies := func(minAvailable, maxUnavailable string) []*kubeapi.PodDisruptionBudget {
		return []*kubeapi.PodDisruptionBudget{newPDB(t, minAvailable, maxUnavailable, 3, 2)}
	}
	oneIsUnready := func(c *cluster) { c.pods["web-1-3"].Status.Conditions[0].Status = "False" }
	type fields struct {
		size   int32 // default 1
		mode   Mode  // default On
		pdbs   []*kubeapi.PodDisruptionBudget
		denied time.Duration // since then until now
		until  time.Duration
		room   func(context.Context, kubeapi.Pod, bool) Room
		change func(c *cluster)
		want   Verdict
		reason string
		detail string
		scaler string
		again  time.Duration // from now until Decision.DecideAgainAt
	}
	tests := map[string]fields{
		"the only pod":          {want: Needed, reason: ReasonLastReady},
		"others on other nodes": {size: 2, want: NotNeeded, reason: ReasonOthersReady},
		"others on the same node": {size: 2, want: Needed, reason: ReasonLastReady, change: func(c *cluster) {
			c.pods["web-1-2"].Spec.NodeName = "n1"
		}},
		"others on a cordoned node": {size: 2, want: Needed, reason: ReasonLastReady, detail: "being removed: n2", change: func(c *cluster) { c.cordon("n2") }},
		"others on a claimed node": {size: 2, want: Needed, reason: ReasonLastReady, change: func(c *cluster) {
			c.nodes["n2"].Annotations = map[string]string{cordon.AnnotationKey("x"): `{"owner":"x"}`}
		}},
		"others on a node of another tool": {size: 2, want: Needed, reason: ReasonLastReady, change: func(c *cluster) {
			c.nodes["n2"].Spec.Taints = []kubeapi.Taint{{Key: "ToBeDeletedByClusterAutoscaler", Effect: "NoSchedule"}}
		}},
		"others on a deleted node": {size: 2, want: Needed, reason: ReasonLastReady, change: func(c *cluster) { delete(c.nodes, "n2") }},
		"one of the others stays": {size: 3, want: NotNeeded, reason: ReasonOthersReady, detail: "web-1-3 of the owner is Ready on node n3", change: func(c *cluster) {
			c.cordon("n2")
			c.pods["web-1-3"].Spec.NodeName = "n3"
		}},
		"nodes may not be read": {size: 2, want: Refused, reason: ReasonNoRights, change: func(c *cluster) { c.forbidden["GetNode"] = true }},
		"others are terminating": {size: 2, want: Needed, reason: ReasonLastReady, change: func(c *cluster) {
			c.pods["web-1-2"].DeletionTimestamp = &now
		}},
		"others are not ready": {size: 2, want: Needed, reason: ReasonLastReady, change: func(c *cluster) {
			c.pods["web-1-2"].Status.Conditions[0].Status = "False"
		}},
		"PDB that never allows it": {size: 3, pdbs: []*kubeapi.PodDisruptionBudget{neverAllows}, want: Needed, reason: ReasonPDBNeverAllows},
		"PDB that allows it later": {size: 3, pdbs: []*kubeapi.PodDisruptionBudget{allowsLater}, want: NotNeeded, reason: ReasonOthersReady},
		"PDB that denies it for the moment": {
			size: 3, change: oneIsUnready, pdbs: denies("2", ""), denied: 10 * time.Second, want: NotYet, reason: ReasonPDBDenies, again: 50 * time.Second,
			detail: "the PodDisruptionBudget web denies the eviction: 2 of 3 pods are healthy, and 2 must be; if it still does after 50s, the pod gets a successor",
		},
		"PDB that denies it for long":         {size: 3, change: oneIsUnready, pdbs: denies("2", ""), denied: time.Minute, want: Needed, reason: ReasonPDBDenies, detail: "2 of 3 pods are healthy, and 2 must be"},
		"PDB that has not denied it":          {size: 3, change: oneIsUnready, pdbs: denies("2", ""), want: NotNeeded, reason: ReasonOthersReady},
		"PDB that has allowed it meanwhile":   {size: 3, pdbs: []*kubeapi.PodDisruptionBudget{newPDB(t, "2", "", 3, 3)}, denied: time.Minute, want: NotNeeded, reason: ReasonOthersReady},
		"PDB that denies it to the last one":  {pdbs: denies("2", ""), denied: time.Second, want: Needed, reason: ReasonLastReady},
		"PDB that one more pod does not help": {size: 3, change: oneIsUnready, pdbs: denies("", "1"), denied: time.Minute, want: Refused, reason: ReasonPDBStillDenies, detail: "3 of 4 pods would be healthy, and 3 would have to be"},
		"PDB that denies an unready pod": {
			size: 3, pdbs: []*kubeapi.PodDisruptionBudget{newPDB(t, "2", "", 3, 1)}, denied: time.Minute, want: Needed, reason: ReasonPDBDenies,
			change: func(c *cluster) { oneIsUnready(c); c.pods[leaving].Status.Conditions = nil },
		},
		"StatefulSet with a PDB that denies it for the moment": {
			size: 3, pdbs: denies("2", ""), denied: time.Second, want: NotYet, reason: ReasonPDBDenies, again: 59 * time.Second,
			detail: "the pod still gets no successor: its owner is the StatefulSet", change: func(c *cluster) { ofKind(c, "StatefulSet") },
		},
		"StatefulSet with a PDB that denies it for long": {
			size: 3, pdbs: denies("2", ""), denied: time.Minute, want: Refused, reason: ReasonOwnerKind, change: func(c *cluster) { ofKind(c, "StatefulSet") },
		},
		"denied for less time than a start takes": {size: 3, pdbs: denies("2", ""), denied: 2 * time.Minute, want: NotYet, reason: ReasonPDBDenies, again: 4 * time.Minute, change: func(c *cluster) {
			for name := range c.pods {
				c.pods[name].Status.Conditions[0].LastTransitionTime = c.pods[name].CreationTimestamp.Add(5 * time.Minute)
			}
		}},
		"denied, and the successor fits before the end": {size: 3, pdbs: denies("2", ""), denied: 10 * time.Second, until: 40 * time.Second, want: NotYet, reason: ReasonPDBDenies, again: 11 * time.Second},
		"denied, and the successor would soon be late":  {size: 3, pdbs: denies("2", ""), denied: 10 * time.Second, until: 29 * time.Second, want: Needed, reason: ReasonPDBDenies},
		"denied, and the successor would be late":       {size: 3, pdbs: denies("2", ""), denied: 10 * time.Second, until: 23 * time.Second, want: Refused, reason: ReasonNoTime},
		"denied, and two pods of the owner leave":       {size: 3, pdbs: denies("2", ""), denied: time.Second, until: time.Minute, want: NotYet, reason: ReasonPDBDenies, again: 7 * time.Second, change: func(c *cluster) { c.pods["web-1-3"].Spec.NodeName = "n1" }},
		"denied, and an autoscaler is slow":             {size: 3, pdbs: denies("2", ""), denied: time.Second, until: time.Minute, want: NotYet, reason: ReasonPDBDenies, again: 16 * time.Second, scaler: "HorizontalPodAutoscaler/web", change: func(c *cluster) { c.withAutoscaler(1, 5) }},
		"denied, and how long a start takes is unknown": {size: 3, pdbs: denies("2", ""), denied: 10 * time.Second, until: 40 * time.Second, want: NotYet, reason: ReasonPDBDenies, again: 15 * time.Second, change: func(c *cluster) {
			for name := range c.pods {
				c.pods[name].Status.Conditions[0].LastTransitionTime = c.pods[name].CreationTimestamp.Add(50 * time.Minute)
			}
		}},
		"PDB that allows it for unready pods": {
			pdbs: []*kubeapi.PodDisruptionBudget{allowsUnready}, want: NotNeeded, reason: ReasonNotReady,
			change: func(c *cluster) { c.pods[leaving].Status.Conditions = nil },
		},
		"PDB that allows it for unready pods alone": {
			pdbs: []*kubeapi.PodDisruptionBudget{allowsUnready}, want: Needed, reason: ReasonPDBNeverAllows,
		},
		"two PDBs":                  {size: 3, pdbs: []*kubeapi.PodDisruptionBudget{allowsLater, allowsLater}, want: Needed, reason: ReasonPDBNeverAllows},
		"the pod is not ready":      {want: NotNeeded, reason: ReasonNotReady, change: func(c *cluster) { c.pods[leaving].Status.Conditions = nil }},
		"the pod is terminating":    {want: NotNeeded, reason: ReasonLeaving, change: func(c *cluster) { c.pods[leaving].DeletionTimestamp = &now }},
		"the pod has finished":      {want: NotNeeded, reason: ReasonLeaving, change: func(c *cluster) { c.pods[leaving].Status.Phase = "Failed" }},
		"off, the pod asks for it":  {mode: Off, want: NotNeeded, reason: ReasonOff, change: func(c *cluster) { annotate(&c.pods[leaving].ObjectMeta, "true") }},
		"annotated, nobody asks":    {mode: Annotated, want: NotNeeded, reason: ReasonOff},
		"annotated, the pod asks":   {mode: Annotated, want: Needed, reason: ReasonLastReady, change: func(c *cluster) { annotate(&c.pods[leaving].ObjectMeta, "true") }},
		"annotated, the owner asks": {mode: Annotated, want: Needed, reason: ReasonLastReady, change: func(c *cluster) { annotate(&c.deployment.ObjectMeta, "true") }},
		"the pod has priority over its owner": {mode: Annotated, want: NotNeeded, reason: ReasonOff, change: func(c *cluster) {
			annotate(&c.deployment.ObjectMeta, "true")
			annotate(&c.pods[leaving].ObjectMeta, "false")
		}},
		"the owner opts out": {want: Refused, reason: ReasonOptedOut, change: func(c *cluster) { annotate(&c.deployment.ObjectMeta, "false") }},
		"StatefulSet":        {want: Refused, reason: ReasonOwnerKind, detail: "StatefulSet", change: func(c *cluster) { ofKind(c, "StatefulSet") }},
		"StatefulSet with other pods": {size: 2, want: NotNeeded, reason: ReasonOthersReady, change: func(c *cluster) {
			ofKind(c, "StatefulSet")
			for _, p := range c.pods {
				p.Labels["statefulset.kubernetes.io/pod-name"] = p.Name
				p.Labels["topology.kubernetes.io/zone"] = "zone-of-" + p.Name
			}
		}},
		"no owner": {want: Refused, reason: ReasonOwnerKind, change: func(c *cluster) { c.pods[leaving].OwnerReferences = nil }},
		"ReplicaSet of another controller": {want: Refused, reason: ReasonOwnerKind, detail: "CloneSet", change: func(c *cluster) {
			c.ownedBy("apps.kruise.io/v1alpha1", "CloneSet")
		}},
		"ReplicationController": {want: Needed, reason: ReasonLastReady, change: func(c *cluster) { c.withReplicationController() }},
		"ReplicationController of a DeploymentConfig": {want: Refused, reason: ReasonOwnerKind, detail: "DeploymentConfig web. Its scale", change: func(c *cluster) {
			c.withReplicationController().ownedBy("apps.openshift.io/v1", "DeploymentConfig")
		}},
		"ReplicationController of a Deployment": {want: Refused, reason: ReasonOwnerKind, detail: "belongs to the Deployment web", change: func(c *cluster) {
			c.withReplicationController().ownedBy("apps/v1", "Deployment")
		}},
		"ReplicationController with an autoscaler": {want: Needed, reason: ReasonLastReady, scaler: "HorizontalPodAutoscaler/web", change: func(c *cluster) {
			c.withReplicationController().withAutoscaler(1, 2)
		}},
		"ReplicationController of another API group": {want: Refused, reason: ReasonOwnerKind, change: func(c *cluster) {
			c.withController("example.com/v1", "ReplicationController")
		}},
		"CloneSet": {want: Needed, reason: ReasonLastReady, change: func(c *cluster) { c.withCloneSet() }},
		"annotated, the CloneSet asks": {mode: Annotated, want: Needed, reason: ReasonLastReady, change: func(c *cluster) {
			annotate(&c.withCloneSet().replicaSet.ObjectMeta, "true")
		}},
		"CloneSet with an autoscaler": {want: Needed, reason: ReasonLastReady, scaler: "HorizontalPodAutoscaler/web", change: func(c *cluster) {
			c.withCloneSet().withAutoscaler(1, 2)
		}},
		"CloneSet with an autoscaler of another kind": {want: Needed, reason: ReasonLastReady, change: func(c *cluster) {
			c.withCloneSet().withAutoscaler(1, 1).hpa.Spec.ScaleTargetRef.APIVersion = "example.com/v1"
		}},
		"CloneSet of a UnitedDeployment": {want: Refused, reason: ReasonOwnerKind, detail: "UnitedDeployment", change: func(c *cluster) {
			c.withCloneSet().ownedBy("apps.kruise.io/v1alpha1", "UnitedDeployment")
		}},
		"CloneSet of a UnitedDeployment with other pods": {size: 2, want: NotNeeded, reason: ReasonOthersReady, change: func(c *cluster) {
			c.withCloneSet().ownedBy("apps.kruise.io/v1alpha1", "UnitedDeployment")
			for _, p := range c.pods {
				p.Labels["apps.kruise.io/cloneset-instance-id"] = p.Name
			}
		}},
		"CloneSet in a rollout":  {want: Refused, reason: ReasonRollout, change: func(c *cluster) { c.withCloneSet().replicaSet.Status.UpdateRevision = "web-1-b" }},
		"CloneSet with old pods": {want: Refused, reason: ReasonRollout, change: func(c *cluster) { c.withCloneSet().replicaSet.Status.UpdatedReplicas = 0 }},
		"CloneSet with a hook": {want: Refused, reason: ReasonOwnRemoval, detail: "spec.lifecycle.preDelete of CloneSet web-1", change: func(c *cluster) {
			c.withCloneSet().replicaSet.Spec.Lifecycle.PreDelete = &struct{}{}
		}},
		"CloneSet with volumes": {want: Refused, reason: ReasonOwnRemoval, detail: "spec.volumeClaimTemplates", change: func(c *cluster) {
			c.withCloneSet().replicaSet.Spec.VolumeClaimTemplates = make([]struct{}, 1)
		}},
		"CloneSet that deletes chosen pods": {want: Refused, reason: ReasonOwnRemoval, detail: "spec.scaleStrategy.podsToDelete", change: func(c *cluster) {
			c.withCloneSet().replicaSet.Spec.ScaleStrategy.PodsToDelete = []string{"web-1-9"}
		}},
		"CloneSet that prefers to spread over zones": {
			want: Refused, reason: ReasonOwnRemoval, detail: "nodes with the label zone, and with ScheduleAnyway", change: func(c *cluster) { c.spreadCloneSet("zone", "ScheduleAnyway") },
		},
		"CloneSet that spreads over zones": {want: Needed, reason: ReasonLastReady, change: func(c *cluster) { c.spreadCloneSet("zone", "DoNotSchedule") }},
		"CloneSet that prefers to spread over nodes": {
			want: Needed, reason: ReasonLastReady, change: func(c *cluster) { c.spreadCloneSet("kubernetes.io/hostname", "ScheduleAnyway") },
		},
		"bare ReplicaSet":                          {want: Needed, reason: ReasonLastReady, change: func(c *cluster) { c.withoutDeployment() }},
		"Rollout":                                  {want: Needed, reason: ReasonLastReady, change: func(c *cluster) { c.toRollout("abc") }},
		"Rollout in a rollout":                     {want: Refused, reason: ReasonRollout, change: func(c *cluster) { c.toRollout("def") }},
		"volume for one node":                      {want: Refused, reason: ReasonReadWriteOnce, change: func(c *cluster) { claim(c, false, "ReadWriteOnce") }},
		"volume for one pod":                       {want: Refused, reason: ReasonReadWriteOnce, change: func(c *cluster) { claim(c, false, "ReadWriteOncePod") }},
		"volume for many nodes":                    {want: Needed, reason: ReasonLastReady, change: func(c *cluster) { claim(c, false, "ReadWriteOnce", "ReadWriteMany") }},
		"volume for many readers":                  {want: Needed, reason: ReasonLastReady, change: func(c *cluster) { claim(c, false, "ReadOnlyMany") }},
		"volume for one writer or many readers":    {want: Refused, reason: ReasonReadWriteOnce, change: func(c *cluster) { claim(c, false, "ReadWriteOnce", "ReadOnlyMany") }},
		"the same volume mounted for reading":      {want: Needed, reason: ReasonLastReady, change: func(c *cluster) { claim(c, true, "ReadWriteOnce", "ReadOnlyMany") }},
		"volume for one node, mounted for reading": {want: Refused, reason: ReasonReadWriteOnce, change: func(c *cluster) { claim(c, true, "ReadWriteOnce") }},
		"paused":                {want: Refused, reason: ReasonPaused, change: func(c *cluster) { c.deployment.Spec.Paused = true }},
		"deleted":               {want: Refused, reason: ReasonDeleting, change: func(c *cluster) { c.deployment.DeletionTimestamp = &now }},
		"replaced":              {want: Refused, reason: ReasonDeleting, change: func(c *cluster) { c.deployment.UID = "u-other" }},
		"rollout not observed":  {want: Refused, reason: ReasonRollout, change: func(c *cluster) { c.deployment.Generation++ }},
		"rollout with old pods": {want: Refused, reason: ReasonRollout, change: func(c *cluster) { c.deployment.Status.Replicas++ }},
		"pod of an old rollout": {want: Refused, reason: ReasonRollout, change: func(c *cluster) {
			c.deployment.Annotations[revisionAnnotation] = "2"
		}},
		"Recreate": {want: Refused, reason: ReasonRecreate, change: func(c *cluster) { c.deployment.Spec.Strategy.Type = "Recreate" }},
		"Recreate, but the pod asks for it": {want: Needed, reason: ReasonLastReady, change: func(c *cluster) {
			c.deployment.Spec.Strategy.Type = "Recreate"
			annotate(&c.pods[leaving].ObjectMeta, "true")
		}},
		"autoscaler": {want: Needed, reason: ReasonLastReady, scaler: "HorizontalPodAutoscaler/web", change: func(c *cluster) { c.withAutoscaler(1, 2) }},
		"autoscaler at its maximum": {
			want: Refused, reason: ReasonAtMaximum, scaler: "HorizontalPodAutoscaler/web", change: func(c *cluster) { c.withAutoscaler(1, 1) },
		},
		"autoscaler without metrics": {want: Refused, reason: ReasonScalerStuck, scaler: "HorizontalPodAutoscaler/web", change: func(c *cluster) {
			c.withAutoscaler(1, 2).hpa.Status.Conditions = []kubeapi.Condition{{Type: "ScalingActive", Status: "False", Message: "no metrics"}}
		}},
		"autoscaler that only raises": {want: Refused, reason: ReasonScalerStuck, scaler: "HorizontalPodAutoscaler/web", change: func(c *cluster) {
			c.withAutoscaler(1, 2).hpa.Spec.Behavior.ScaleDown.SelectPolicy = "Disabled"
		}},
		"autoscaler of another owner": {want: Needed, reason: ReasonLastReady, change: func(c *cluster) {
			c.withAutoscaler(1, 1).hpa.Spec.ScaleTargetRef.Name = "other"
		}},
		"KEDA": {want: Needed, reason: ReasonLastReady, scaler: "ScaledObject/web", change: func(c *cluster) { c.withScaledObject() }},
		"KEDA at its maximum": {want: Refused, reason: ReasonAtMaximum, scaler: "ScaledObject/web", change: func(c *cluster) {
			one := int32(1)
			c.withScaledObject().scaled.Spec.MaxReplicaCount = &one
		}},
		"enough time": {until: 25 * time.Second, want: Needed, reason: ReasonLastReady},
		"a container has restarted": {until: 25 * time.Second, want: Needed, reason: ReasonLastReady, change: func(c *cluster) {
			readyAfter(c, 20*time.Minute)
			c.pods[leaving].Status.ContainerStatuses = []kubeapi.ContainerStatus{restartedAt(c.pods[leaving].CreationTimestamp.Add(20*time.Minute - 20*time.Second))}
		}},
		"was not ready for a while": {until: 25 * time.Second, want: Needed, reason: ReasonLastReady, change: func(c *cluster) { readyAfter(c, 50*time.Minute) }},
		"takes long to start":       {until: 20 * time.Minute, want: Refused, reason: ReasonNoTime, detail: "24m0s", change: func(c *cluster) { readyAfter(c, 20*time.Minute) }},
		"too little time":           {until: 23 * time.Second, want: Refused, reason: ReasonNoTime, detail: "24s"},
		"too little for autoscaler": {until: 38 * time.Second, want: Refused, reason: ReasonNoTime, scaler: "HorizontalPodAutoscaler/web", change: func(c *cluster) { c.withAutoscaler(1, 2) }},
		"room":                      {want: Needed, reason: ReasonLastReady, room: func(context.Context, kubeapi.Pod, bool) Room { return Room{Fits: true} }},
		"no room": {want: Refused, reason: ReasonNoRoom, detail: "too small", room: func(context.Context, kubeapi.Pod, bool) Room {
			return Room{Detail: "every node is too small"}
		}},
		"enough time for an instance":      {until: 145 * time.Second, want: Needed, reason: ReasonLastReady, room: onNewInstance},
		"too little for an instance":       {until: 143 * time.Second, want: Refused, reason: ReasonNoTime, detail: "2m24s to become Ready with a new instance", room: onNewInstance},
		"KEDA's object is not there":       {want: Refused, reason: ReasonDeleting, change: func(c *cluster) { c.withScaledObject().scaled = nil }},
		"owner may not be read":            {want: Refused, reason: ReasonNoRights, change: func(c *cluster) { c.forbidden["GetWorkload"] = true }},
		"annotated, owner may not be read": {mode: Annotated, want: NotNeeded, reason: ReasonOff, change: func(c *cluster) { c.forbidden["GetWorkload"] = true }},
		"autoscalers may not be read":      {want: Refused, reason: ReasonNoRights, change: func(c *cluster) { c.forbidden["ListHorizontalPodAutoscalers"] = true }},
	}
	for name, test := range tests {
		t.Run(name, virtual.InVirtualTime(func(t *testing.T) {
			c := newCluster(t, max(1, test.size))
			if test.change != nil {
				test.change(c)
			}
			mode := On
			if test.mode != "" {
				mode = test.mode
			}
			metrics := &counter{}
			s, err := New(Options{
				API: c.newClient(), Namespace: "slipway", Identity: "n1/1", Mode: mode, CheckRoom: test.room, Metrics: metrics,
			})
			must.NoError(t, err)
			var until time.Time
			if test.until > 0 {
				until = time.Now().Add(test.until)
			}
			var deniedSince time.Time
			if test.denied > 0 {
				deniedSince = time.Now().Add(-test.denied)
			}
			began := time.Now()
			d, err := s.Decide(t.Context(), *c.pods[leaving], test.pdbs, deniedSince, until)
			must.NoError(t, err)
			check.Is(t, test.want, d.Verdict, d)
			check.Is(t, test.again > 0, !d.DecideAgainAt.IsZero(), d)
			check.Not(t, test.again > 0 && d.DecideAgainAt.Sub(began).Round(time.Second) != test.again, "decide again after %s", d.DecideAgainAt.Sub(began))
			check.Is(t, test.reason, d.Reason, d)
			check.Is(t, test.scaler, d.Owner.Scaler)
			check.Contains(t, d.Detail, test.detail)
			check.Not(t, d.Detail == "", "there is no detail")
			refused := 0
			if test.want == Refused {
				refused = 1
			}
			check.Is(t, refused, metrics.count("refused "+d.Reason))
		}))
	}
}

// restartedAt returns the status of a container that has restarted.
func restartedAt(at time.Time) kubeapi.ContainerStatus {
	s := kubeapi.ContainerStatus{Name: "app", RestartCount: 1}
	s.State.Running = &struct {
		StartedAt time.Time `json:"startedAt,omitzero"`
	}{at}
	return s
}

func TestStartupIsMeasuredFromTheLastStart(t *testing.T) {
	created := time.Now().Add(-100 * time.Hour)
	first := kubeapi.ContainerStatus{Name: "proxy"}
	first.State.Running = restartedAt(created.Add(2 * time.Second)).State.Running
	for name, c := range map[string]struct {
		readyAfter time.Duration
		init, main []kubeapi.ContainerStatus
		want       time.Duration // 0 is unknown
	}{
		"first start":             {readyAfter: 20 * time.Second, main: []kubeapi.ContainerStatus{first}, want: 15 * time.Second},
		"restart":                 {readyAfter: 72 * time.Hour, main: []kubeapi.ContainerStatus{first, restartedAt(created.Add(72*time.Hour - 9*time.Second))}, want: 9 * time.Second},
		"restart of a sidecar":    {readyAfter: 72 * time.Hour, init: []kubeapi.ContainerStatus{restartedAt(created.Add(72*time.Hour - time.Second))}, want: time.Second},
		"restart of two":          {readyAfter: 72 * time.Hour, main: []kubeapi.ContainerStatus{restartedAt(created.Add(72*time.Hour - 3*time.Second)), restartedAt(created.Add(72*time.Hour - 9*time.Second))}, want: 3 * time.Second},
		"restart without probe":   {readyAfter: 20 * time.Second, main: []kubeapi.ContainerStatus{restartedAt(created.Add(72 * time.Hour))}, want: 15 * time.Second},
		"probe failed for a time": {readyAfter: 72 * time.Hour, main: []kubeapi.ContainerStatus{first}},
	} {
		t.Run(name, func(t *testing.T) {
			p := kubeapi.Pod{ObjectMeta: kubeapi.ObjectMeta{CreationTimestamp: created}}
			p.Status.InitContainerStatuses, p.Status.ContainerStatuses = c.init, c.main
			p.Status.Conditions = []kubeapi.Condition{
				{Type: "PodScheduled", Status: "True", LastTransitionTime: created.Add(5 * time.Second)},
				{Type: "Ready", Status: "True", LastTransitionTime: created.Add(c.readyAfter)},
			}
			took, known := toPodState(&p).startup()
			check.Is(t, c.want > 0, known)
			check.Not(t, known && took != c.want, "a start takes %s, want %s", took, c.want)
		})
	}
}

func TestOwnerOnManyDrainedNodesCostsFewReads(t *testing.T) {
	c := newCluster(t, 200)
	for i := range 200 {
		node := fmt.Sprint("m", i)
		c.nodes[node] = &kubeapi.Node{ObjectMeta: kubeapi.ObjectMeta{Name: node}, Spec: kubeapi.NodeSpec{Unschedulable: true}}
		c.pods[fmt.Sprint("web-1-", i+1)].Spec.NodeName = node
	}
	l := c.newClient()
	s, err := New(Options{API: l, Namespace: "slipway", Identity: "n1/1", Mode: On})
	must.NoError(t, err)
	d, err := s.Decide(t.Context(), *c.pods[leaving], nil, time.Time{}, time.Time{})
	must.NoError(t, err)
	check.Is(t, ReasonLastReady, d.Reason)
	check.Not(t, l.requestCount() > maxNodeReads+10, "%d requests", l.requestCount())
}

// onNewInstance says that a successor needs an instance that takes 2 minutes.
func onNewInstance(context.Context, kubeapi.Pod, bool) Room {
	return Room{Fits: true, LaunchTime: 2 * time.Minute}
}

// ownedBy gives the ReplicaSet, ReplicationController or CloneSet another owner "web".
func (c *cluster) ownedBy(apiVersion, kind string) {
	c.replicaSet.OwnerReferences = []kubeapi.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: "web", UID: "u-web", Controller: isController()}}
}

// spreadCloneSet makes a CloneSet with a topologySpreadConstraint the owner.
func (c *cluster) spreadCloneSet(topologyKey, whenUnsatisfiable string) {
	c.withCloneSet().replicaSet.Spec.Template.Spec.TopologySpreadConstraints = []kubeapi.TopologySpreadConstraint{
		{TopologyKey: topologyKey, WhenUnsatisfiable: whenUnsatisfiable},
	}
}

// toRollout makes the Deployment a Rollout of Argo that is at the pod template with this hash.
func (c *cluster) toRollout(hash string) {
	c.replicaSet.OwnerReferences[0].APIVersion, c.replicaSet.OwnerReferences[0].Kind = "argoproj.io/v1alpha1", "Rollout"
	c.replicaSet.Labels = map[string]string{rolloutHashLabel: "abc"}
	c.deployment.Annotations = nil
	c.deployment.Status.StableRS, c.deployment.Status.CurrentPodHash = "abc", hash
	c.deployment.Status.ObservedGeneration = json.RawMessage(`"1"`)
}

// TestSurgeThatEndsWhileItsRecordIsReadIsNoRollout ends another surge of the owner between the read of the owner and that of the record.
func TestSurgeThatEndsWhileItsRecordIsReadIsNoRollout(t *testing.T) {
	simulate(t, single, func(t *testing.T, ctx context.Context, c *cluster) {
		c.deploymentLag = time.Hour
		crashed, next := c.newProcess(ctx, "n1/1"), c.newProcess(ctx, "n1/2")
		crashed.surge(leaving, time.Time{}, func(p Progress) {
			if p.Step == AwaitingReady {
				crashed.crash()
			}
		})
		end := sync.OnceFunc(func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			check.Is(t, 1, len(c.leases))
			c.setReplicas(c.deployment, 1, FieldManager)
			c.deploymentLag, c.unseen = 0, nil
			c.updateStatus()
			clear(c.leases)
		})
		next.client.faultOf = func(request string) fault {
			if request == "GetLease" {
				end()
			}
			return fault{}
		}
		d, result := next.surge(leaving, time.Time{}, nil)
		check.Is(t, Needed, d.Verdict, d)
		check.Is(t, true, result.PodLeft, result)
		check.Is(t, "", c.findTraces())
	})
}

func TestDecideReturnsErrorIfOwnerIsUnreadable(t *testing.T) {
	c := newCluster(t, 1)
	l := c.newClient()
	l.nextFault = func(int) fault { return fault{fails: true} }
	s, err := New(Options{API: l, Namespace: "slipway", Identity: "n1/1", Mode: On})
	must.NoError(t, err)
	_, err = s.Decide(t.Context(), *c.pods[leaving], nil, time.Time{}, time.Time{})
	check.ErrorContains(t, err, "ReplicaSet shop/web-1", "connection reset")
}

func TestNewRefusesInvalidOptions(t *testing.T) {
	valid := func() Options {
		return Options{API: newCluster(t, 1).newClient(), Namespace: "slipway", Identity: "n1/1"}
	}
	tests := map[string]struct {
		change func(o *Options)
		want   string
	}{
		"API":       {func(o *Options) { o.API = nil }, "API is nil"},
		"namespace": {func(o *Options) { o.Namespace = "" }, "namespace is empty"},
		"identity":  {func(o *Options) { o.Identity = "" }, "identity is empty"},
		"mode":      {func(o *Options) { o.Mode = "yes" }, `"yes" is not a surge mode`},
		"wait":      {func(o *Options) { o.SchedulingWait = -time.Second }, "scheduling wait -1s"},
		"number":    {func(o *Options) { o.MaxConcurrent = -1 }, "at most -1"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			o := valid()
			test.change(&o)
			_, err := New(o)
			check.ErrorContains(t, err, test.want)
		})
	}
}

// noCustomKinds is an API server without the CustomResourceDefinitions of KEDA, Argo Rollouts and OpenKruise.
type noCustomKinds struct {
	*client

	silent bool // the rest does not answer either
}

func (noCustomKinds) GetScaledObject(context.Context, kubeapi.ObjectRef) (*kubeapi.ScaledObject, error) {
	return nil, &kubeapi.StatusError{Code: 404, Message: "404 page not found"}
}

func (noCustomKinds) GetWorkload(context.Context, kubeapi.ObjectRef) (*kubeapi.Workload, error) {
	return nil, &kubeapi.StatusError{Code: 404, Message: "404 page not found"}
}

func (l noCustomKinds) ListHorizontalPodAutoscalers(ctx context.Context, namespace string) ([]kubeapi.HorizontalPodAutoscaler, error) {
	if l.silent {
		return nil, &kubeapi.StatusError{Code: 404, Message: "404 page not found"}
	}
	return l.client.ListHorizontalPodAutoscalers(ctx, namespace)
}

func TestDeletedKindEndsTheRestoration(t *testing.T) {
	for _, silent := range []bool{false, true} {
		l := noCustomKinds{newCluster(t, 1).newClient(), silent}
		s, err := New(Options{API: l, Namespace: "slipway", Identity: "n1/1", Mode: On})
		must.NoError(t, err)
		for _, kind := range []string{"ScaledObject", "Rollout", "CloneSet", "Deployment"} {
			target := sizeTarget{APIVersion: sizeFields[kind].group + "/v1", Kind: kind, Namespace: namespace, Name: "web", UID: "u", Field: sizeFields[kind].field}
			_, err = s.readSize(t.Context(), target)
			check.Is(t, !silent && kind != "Deployment", errors.Is(err, errTargetGone), kind, err)
		}
	}
}
