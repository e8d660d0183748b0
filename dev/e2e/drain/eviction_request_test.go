package drain_test

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	lifecyclev1alpha1 "k8s.io/api/lifecycle/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/dev/workload"
	"github.com/slipway-dev/slipway/internal/drain"
)

// firstEvictionRequestVersion is the first Kubernetes version that has the API group lifecycle.k8s.io.
const firstEvictionRequestVersion = "1.37"

// startWithEvictionRequests starts a testbed that serves EvictionRequests, and the controller of the test.
func startWithEvictionRequests(t *testing.T) *testbed.Testbed {
	t.Helper()
	version, err := controlplane.ResolveVersion("")
	if err != nil {
		t.Fatal(err)
	}
	if all := controlplane.Versions(); slices.Index(all, version) < slices.Index(all, firstEvictionRequestVersion) {
		t.Skipf("Kubernetes %s has no EvictionRequests", version)
	}
	bed := testbed.StartForTest(t, testbed.Options{
		Azure: azure.Options{Outage: time.Second},
		Cluster: controlplane.Options{Flags: map[string][]string{
			controlplane.APIServer: {"--feature-gates=EvictionRequestAPI=true", "--runtime-config=lifecycle.k8s.io/v1alpha1=true"},
		}},
	})
	c := &evictionController{t: t, client: bed.Client(), processed: map[types.UID]*lifecyclev1alpha1.Eviction{}}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.run(ctx)
	}()
	t.Cleanup(func() { stop(); <-done })
	return bed
}

// The responders of the test. mover answers and later deletes the pod; idler only answers.
const (
	mover     = "acme.io/mover"
	idler     = "acme.io/idler"
	moverText = "moving the leader to another pod"
	moveTime  = 3 * time.Second
)

// evictionController does what the controller of EvictionRequests does in KEP-4563, as far as the tests need. It also is
// the responders. Kubernetes 1.37 has neither.
type evictionController struct {
	t         *testing.T
	client    kubernetes.Interface
	processed map[types.UID]*lifecyclev1alpha1.Eviction // by the pod's UID
}

func (c *evictionController) run(ctx context.Context) {
	for ctx.Err() == nil {
		all, err := c.client.LifecycleV1alpha1().EvictionRequests("").List(ctx, metav1.ListOptions{})
		if err != nil {
			if ctx.Err() == nil {
				c.t.Errorf("list EvictionRequests: %v", err)
			}
			return
		}
		for i := range all.Items {
			if err := c.reconcile(ctx, &all.Items[i]); err != nil && ctx.Err() == nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
				c.t.Errorf("reconcile %s: %v", all.Items[i].Name, err)
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (c *evictionController) reconcile(ctx context.Context, r *lifecyclev1alpha1.EvictionRequest) error {
	e := c.processed[r.Spec.Target.Pod.UID]
	if r.Spec.Intent == lifecyclev1alpha1.EvictionRequestIntentWithdrawn {
		if e == nil || e.Status.TargetResponders[0].State == lifecyclev1alpha1.ResponderStateCanceled {
			return nil
		}
		e.Status.TargetResponders[0].State = lifecyclev1alpha1.ResponderStateCanceled
		setFailed(&e.Status.Conditions, metav1.ConditionTrue, lifecyclev1alpha1.EvictionConditionReasonCanceledDueToNoRequesters)
		if _, err := c.client.LifecycleV1alpha1().Evictions(e.Namespace).UpdateStatus(ctx, e, metav1.UpdateOptions{}); err != nil {
			return err
		}
		return c.setRequestStatus(ctx, r, metav1.ConditionTrue, lifecyclev1alpha1.EvictionConditionReasonCanceledDueToNoRequesters)
	}
	if e != nil {
		return c.respond(ctx, e)
	}
	e, err := c.createEviction(ctx, r)
	if err != nil {
		return err
	}
	c.processed[r.Spec.Target.Pod.UID] = e
	return c.setRequestStatus(ctx, r, metav1.ConditionFalse, lifecyclev1alpha1.EvictionConditionReasonAwaitingEviction)
}

func setFailed(all *[]metav1.Condition, status metav1.ConditionStatus, reason lifecyclev1alpha1.EvictionConditionReason) {
	meta.SetStatusCondition(all, metav1.Condition{Type: string(lifecyclev1alpha1.EvictionConditionFailed), Status: status, Reason: string(reason)})
}

func (c *evictionController) setRequestStatus(ctx context.Context, r *lifecyclev1alpha1.EvictionRequest, status metav1.ConditionStatus,
	reason lifecyclev1alpha1.EvictionConditionReason,
) error {
	setFailed(&r.Status.Conditions, status, reason)
	r.Status.ObservedGeneration = &r.Generation
	_, err := c.client.LifecycleV1alpha1().EvictionRequests(r.Namespace).UpdateStatus(ctx, r, metav1.UpdateOptions{})
	return err
}

// createEviction creates the Eviction for a request, and activates its first responder.
func (c *evictionController) createEviction(ctx context.Context, r *lifecyclev1alpha1.EvictionRequest) (*lifecyclev1alpha1.Eviction, error) {
	pod, err := c.client.CoreV1().Pods(r.Namespace).Get(ctx, r.Spec.Target.Pod.Name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	e := &lifecyclev1alpha1.Eviction{ObjectMeta: metav1.ObjectMeta{
		Name: "pod-1-" + pod.Name, Namespace: r.Namespace,
		Labels: map[string]string{r.Spec.Requester: string(lifecyclev1alpha1.EvictionParticipantRoleRequester)},
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion: lifecyclev1alpha1.SchemeGroupVersion.String(), Kind: "EvictionRequest", Name: r.Name, UID: r.UID,
		}},
	}}
	e.Spec.Target.Pod = &lifecyclev1alpha1.EvictionPodReference{Name: pod.Name, UID: pod.UID}
	evictions := c.client.LifecycleV1alpha1().Evictions(r.Namespace)
	e, err = evictions.Create(ctx, e, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	now := metav1.Now()
	last := corev1.EvictionResponder{Name: lifecyclev1alpha1.EvictionResponderImperativeEviction, Priority: new(int32(100))}
	for _, s := range append(slices.Clone(pod.Spec.EvictionResponders), last) {
		state := lifecyclev1alpha1.TargetResponder{Name: s.Name, Priority: s.Priority, State: lifecyclev1alpha1.ResponderStateInactive}
		status := lifecyclev1alpha1.ResponderStatus{Name: s.Name}
		if len(e.Status.TargetResponders) == 0 {
			state.State, status.StartTime = lifecyclev1alpha1.ResponderStateActive, &now
		}
		e.Status.TargetResponders = append(e.Status.TargetResponders, state)
		e.Status.Responders = append(e.Status.Responders, status)
	}
	setFailed(&e.Status.Conditions, metav1.ConditionFalse, lifecyclev1alpha1.EvictionConditionReasonAwaitingEviction)
	return evictions.UpdateStatus(ctx, e, metav1.UpdateOptions{})
}

// respond acts as the active responder: it answers once, and the mover deletes the pod after moveTime.
func (c *evictionController) respond(ctx context.Context, e *lifecyclev1alpha1.Eviction) error {
	s := &e.Status.Responders[0]
	switch {
	case s.HeartbeatTime == nil:
		now := metav1.Now()
		s.HeartbeatTime, s.Message = &now, new(moverText)
		s.ExpectedCompletionTime = new(metav1.NewTime(now.Add(time.Minute)))
	case s.Name != mover || time.Since(s.StartTime.Time) < moveTime:
		return nil
	default:
		uid := e.Spec.Target.Pod.UID
		return c.client.CoreV1().Pods(e.Namespace).Delete(ctx, e.Spec.Target.Pod.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
	}
	is, err := c.client.LifecycleV1alpha1().Evictions(e.Namespace).UpdateStatus(ctx, e, metav1.UpdateOptions{})
	if err == nil {
		*e = *is
	}
	return err
}

// runResponding runs pods of a StatefulSet with a responder.
func (f *fixture) runResponding(name, responder string, change func(*workload.App)) {
	f.t.Helper()
	app := f.app(name, 1)
	if change != nil {
		change(&app)
	}
	set := app.StatefulSet()
	set.Spec.Template.Spec.EvictionResponders = []corev1.EvictionResponder{{Name: responder, Priority: new(int32(10000))}}
	f.run(set)
}

// checkNoRequests checks that no EvictionRequest of the test is left, and that some were made.
func (f *fixture) checkNoRequests() {
	f.t.Helper()
	all, err := f.Client().LifecycleV1alpha1().EvictionRequests(f.ns).List(f.ctx, metav1.ListOptions{})
	f.check(err)
	for _, r := range all.Items {
		f.t.Errorf("EvictionRequest %s for %s is left", r.Name, r.Spec.Target.Pod.Name)
	}
}

func (f *fixture) evictedPods() (names []string) {
	f.t.Helper()
	for _, e := range f.requests("create", "pods/eviction") {
		if accepted(e) && !strings.Contains(string(e.RequestObject.Raw), "dryRun") {
			names = append(names, e.ObjectRef.Name)
		}
	}
	return names
}

func TestDrainAsksRespondersBeforeEviction(t *testing.T) {
	t.Parallel()
	bed := startWithEvictionRequests(t)
	t.Run("the responder removes its pod", func(t *testing.T) {
		t.Parallel()
		f := newFixtureOn(t, bed, "responder")
		f.runResponding("db", mover, nil)
		f.run(f.app("web", 2).Deployment())
		was := f.pods()
		f.checkOutput(f.drain(exitDrained, f.node, "--dry-run=server"), f.ns+"/db-0: asks "+mover+" (priority 10000)")
		why, err := testbed.NewCommand(f.ctx, t, "slipway", "why", "--kubeconfig", f.Kubeconfig(), "node/"+f.node).Output()
		f.check(err)
		if words := strings.Join(strings.Fields(string(why)), " "); !strings.Contains(words, "ASKED BEFORE ITS EVICTION "+f.ns+"/db-0 "+mover) {
			t.Errorf("why does not name the responder:\n%s", why)
		}
		report := f.parseReport(f.drain(exitDrained, f.node, "-o", "json"))
		for _, p := range report.Pods {
			switch r := p.EvictionRequest; {
			case !strings.HasPrefix(p.Name, "db-"):
				if r != nil || p.Removal != drain.Evicted {
					t.Errorf("%s without responders: %s, %+v", p.Name, p.Removal, r)
				}
			case r == nil || r.Fallback != "" || r.RequestedAt.IsZero() || len(r.Responders) != 1 || r.Responders[0].Message != moverText ||
				r.Responders[0].ExpectedCompletionTime.IsZero() || p.UID != string(was["db-0"].UID) || p.End != drain.Stopped:
				t.Errorf("report of db-0: %+v, %+v", p, r)
			}
		}
		if names := f.evictedPods(); len(names) != 2 || slices.Contains(names, "db-0") {
			t.Errorf("evicted %v, want only the two pods without responders", names)
		}
		f.checkNoRequests()
	})
	t.Run("the deadline ends the wait", func(t *testing.T) {
		t.Parallel()
		f := newFixtureOn(t, bed, "responder-late")
		f.runResponding("db", idler, func(a *workload.App) { a.GracePeriod = 5 * time.Second })
		report := f.parseReport(f.drain(exitDrained, f.node, "--deadline", "30s", "-o", "json"))
		p := report.Pods[0]
		if r := p.EvictionRequest; r.Fallback != drain.NoTimeForResponders || p.Removal != drain.Evicted || p.WasCutShort() ||
			report.Deadline.Sub(r.FallbackAt) > 20*time.Second {
			t.Errorf("report of db-0: %+v, %+v", p, r)
		}
		f.checkNoRequests()
	})
	t.Run("an interrupt withdraws the request", func(t *testing.T) {
		t.Parallel()
		f := newFixtureOn(t, bed, "responder-stop")
		f.runResponding("interrupted", idler, nil)
		before := f.pods()
		cmd, stdout, stderr := f.command(f.node)
		f.check(cmd.Start())
		f.check(testbed.PollUntil(f.ctx, "the responder has answered", func() bool {
			e, err := f.Client().LifecycleV1alpha1().Evictions(f.ns).Get(f.ctx, "pod-1-interrupted-0", metav1.GetOptions{})
			return err == nil && len(e.Status.Responders) > 0 && e.Status.Responders[0].HeartbeatTime != nil
		}))
		f.check(cmd.Process.Signal(syscall.SIGINT))
		_ = cmd.Wait()
		if code := cmd.ProcessState.ExitCode(); code != exitInterrupted {
			t.Errorf("exit code %d\n%s%s", code, stdout, stderr)
		}
		f.checkNoRequests()
		withdrawn, deleted := f.requests("patch", "evictionrequests"), f.requests("delete", "evictionrequests")
		if len(withdrawn) != 1 || len(deleted) != 1 || deleted[0].RequestReceivedTimestamp.Before(&withdrawn[0].RequestReceivedTimestamp) {
			t.Errorf("withdrawn %v, deleted %v", withdrawn, deleted)
		}
		f.checkPodsUnchanged(before)
	})
	t.Run("the manager's token writes only its own requests", func(t *testing.T) {
		t.Parallel()
		f := newFixtureOn(t, bed, "responder-manager")
		f.run(f.app("web", 1).StatefulSet())
		f.checkManagerIsLimited()
	})
	t.Run("the agent uses exactly its rights", func(t *testing.T) {
		t.Parallel()
		f := newFixtureOn(t, bed, "responder-agent")
		pool := controlplane.AKSPool{Name: "asked"}
		f.Azure.EnsureScaleSet(pool.ScaleSetName())
		f.check(f.AddNodes(f.ctx, pool.Nodes(1)...))
		f.node = pool.NodeName(0)
		f.runResponding("mover", mover, nil)
		f.runResponding("idler", idler, nil)
		a, err := f.StartAgent(f.ctx, pool, 0, "--poll-interval=200ms")
		f.check(err)
		t.Cleanup(func() { _ = a.KillIfAlive() })
		e, err := f.Azure.Announce(azure.Announcement{
			Type: azure.Freeze, DurationSeconds: new(60), ScaleSet: pool.ScaleSetName(), Resources: []string{pool.ResourceName(0)}, Notice: 5 * time.Minute,
		})
		f.check(err)
		f.check(testbed.PollUntil(f.ctx, "the mover has moved, and the idler was asked", func() bool {
			_, err := f.Client().LifecycleV1alpha1().Evictions(f.ns).Get(f.ctx, "pod-1-idler-0", metav1.GetOptions{})
			pods := f.pods()
			_, is := pods["idler-0"]
			return err == nil && is && len(pods) == 1
		}))
		f.check(f.Azure.CancelEvent(e.EventID)) // withdraws the request for the idler
		_, err = f.AwaitEvent(f.ctx, f.node, "Uncordoned")
		f.check(err)
		f.checkNoRequests()
		f.checkAgentRights()
		f.checkAgentIsLimited(a.Kubeconfig)
	})
}

// checkAgentIsLimited checks that a stolen token of the agent cannot act as another requester or as another node's drain.
func (f *fixture) checkAgentIsLimited(kubeconfig string) {
	f.t.Helper()
	client := f.clientOf(kubeconfig)
	pod := f.pods()["idler-0"]
	create := func(client kubernetes.Interface, requester, node string) error {
		r := &lifecyclev1alpha1.EvictionRequest{ObjectMeta: metav1.ObjectMeta{GenerateName: "stolen-", Labels: map[string]string{"slipway.dev/drain-node": node}}}
		r.Spec = lifecyclev1alpha1.EvictionRequestSpec{Requester: requester, Intent: lifecyclev1alpha1.EvictionRequestIntentEviction}
		r.Spec.Target.Pod = &lifecyclev1alpha1.EvictionRequestPodReference{Name: pod.Name, UID: pod.UID}
		_, err := client.LifecycleV1alpha1().EvictionRequests(f.ns).Create(f.ctx, r, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	f.check(create(client, drain.Requester, f.node))
	for _, c := range []struct{ requester, node, refusal string }{
		{"example.com/other", f.node, "no EvictionRequests but those of the requester slipway.dev/drain"},
		{drain.Requester, "another-node", "no EvictionRequests of other drains"},
	} {
		f.check(create(f.Client(), c.requester, c.node)) // the administrator may
		if err := create(client, c.requester, c.node); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), c.refusal) {
			f.t.Errorf("%s for node %s: got %v, want it refused: %s", c.requester, c.node, err, c.refusal)
		}
	}
	policy, err := f.Client().AdmissionregistrationV1().ValidatingAdmissionPolicies().Get(f.ctx, testbed.AgentAccount+"-eviction-request", metav1.GetOptions{})
	f.check(err)
	if policy.Status.TypeChecking == nil || len(policy.Status.TypeChecking.ExpressionWarnings) > 0 {
		f.t.Errorf("type check: %+v", policy.Status)
	}
}

func (f *fixture) clientOf(kubeconfig string) kubernetes.Interface {
	f.t.Helper()
	client, err := testbed.NewClient(kubeconfig)
	f.check(err)
	return client
}

// checkManagerIsLimited checks that a stolen token of the manager changes and deletes no EvictionRequests of other clients, and
// creates none that stays longer than its pod.
func (f *fixture) checkManagerIsLimited() {
	f.t.Helper()
	f.check(f.InstallManagerOnce(f.ctx))
	f.check(f.AwaitPermissions(f.ctx, testbed.ManagerNamespace, testbed.ManagerAccount, testbed.ManagerAccount))
	kubeconfig, err := f.ServiceAccountKubeconfig(f.ctx, testbed.ManagerNamespace, testbed.ManagerAccount, controlplane.TokenOptions{})
	f.check(err)
	pod := f.pods()["web-0"]
	newRequest := func(client string, change func(r *lifecyclev1alpha1.EvictionRequest)) *lifecyclev1alpha1.EvictionRequest {
		r := &lifecyclev1alpha1.EvictionRequest{ObjectMeta: metav1.ObjectMeta{
			Name: "slipway-" + client + "-" + string(pod.UID), Namespace: f.ns, Labels: map[string]string{"slipway.dev/drain-client": client},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}},
		}}
		r.Spec = lifecyclev1alpha1.EvictionRequestSpec{Requester: drain.Requester, Intent: lifecyclev1alpha1.EvictionRequestIntentEviction}
		r.Spec.Target.Pod = &lifecyclev1alpha1.EvictionRequestPodReference{Name: pod.Name, UID: pod.UID}
		if change != nil {
			change(r)
		}
		return r
	}
	admin := f.Client().LifecycleV1alpha1().EvictionRequests(f.ns)
	manager := f.clientOf(kubeconfig).LifecycleV1alpha1().EvictionRequests(f.ns)
	try := []string{metav1.DryRunAll}
	create := func(client string, change func(r *lifecyclev1alpha1.EvictionRequest)) error {
		_, err := manager.Create(f.ctx, newRequest(client, change), metav1.CreateOptions{DryRun: try})
		return err
	}
	isRefused := func(err error, words string) bool {
		return apierrors.IsForbidden(err) && strings.Contains(err.Error(), words)
	}
	const foreign, odd, more = "writes no EvictionRequests but its own", "has the pod as its only owner", "nothing of an EvictionRequest but spec.intent"
	f.check(testbed.PollUntil(f.ctx, "the policy is in force", func() bool { return isRefused(create("agent", nil), foreign) }))
	expect := func(what string, err error, words string) {
		f.t.Helper()
		if words == "" && err != nil || words != "" && !isRefused(err, words) {
			f.t.Errorf("%s: got %v, want it refused with %q, or allowed if that is empty", what, err, words)
		}
	}
	for _, client := range []string{"manager", "queue-agent"} {
		expect("create a request of "+client, create(client, nil), "")
	}
	for what, c := range map[string]struct {
		change func(r *lifecyclev1alpha1.EvictionRequest)
		words  string
	}{
		"another requester":    {func(r *lifecyclev1alpha1.EvictionRequest) { r.Spec.Requester = "example.com/other" }, foreign},
		"no client":            {func(r *lifecyclev1alpha1.EvictionRequest) { r.Labels = nil }, foreign},
		"another name":         {func(r *lifecyclev1alpha1.EvictionRequest) { r.Name += "-2" }, odd},
		"a generated name":     {func(r *lifecyclev1alpha1.EvictionRequest) { r.GenerateName, r.Name = r.Name, "" }, odd},
		"a finalizer":          {func(r *lifecyclev1alpha1.EvictionRequest) { r.Finalizers = []string{"example.com/forever"} }, odd},
		"no owner":             {func(r *lifecyclev1alpha1.EvictionRequest) { r.OwnerReferences = nil }, odd},
		"another pod as owner": {func(r *lifecyclev1alpha1.EvictionRequest) { r.OwnerReferences[0].UID = "another" }, odd},
		"a second owner": {func(r *lifecyclev1alpha1.EvictionRequest) {
			r.OwnerReferences = append(r.OwnerReferences, metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: f.node, UID: "n"})
		}, odd},
	} {
		expect("create with "+what, create("manager", c.change), c.words)
	}
	for client, words := range map[string]string{"manager": "", "agent": foreign} {
		stored := newRequest(client, nil)
		_, err := admin.Create(f.ctx, stored, metav1.CreateOptions{})
		f.check(err)
		patch := func(body string) error {
			_, err := manager.Patch(f.ctx, stored.Name, types.MergePatchType, []byte(body), metav1.PatchOptions{DryRun: try})
			return err
		}
		expect("withdraw a request of "+client, patch(`{"spec":{"intent":"Withdrawn"}}`), words)
		for _, body := range []string{
			`{"metadata":{"finalizers":["example.com/forever"]}}`, `{"metadata":{"labels":{"slipway.dev/drain-node":"another"}}}`,
			`{"metadata":{"ownerReferences":null}}`, `{"metadata":{"annotations":{"example.com/note":"x"}}}`,
		} {
			expect("patch a request of "+client+" with "+body, patch(body), cmp.Or(words, more))
		}
		expect("take over a request of "+client, patch(`{"metadata":{"labels":{"slipway.dev/drain-client":"queue-agent"}}}`), cmp.Or(words, more))
		expect("delete a request of "+client, manager.Delete(f.ctx, stored.Name, metav1.DeleteOptions{DryRun: try}), words)
		f.check(admin.Delete(f.ctx, stored.Name, metav1.DeleteOptions{}))
	}
}

// checkAgentRights compares the agent's requests to lifecycle.k8s.io with its role. dev/e2e/agent compares the others.
func (f *fixture) checkAgentRights() {
	f.t.Helper()
	role, err := f.Client().RbacV1().ClusterRoles().Get(f.ctx, testbed.AgentAccount, metav1.GetOptions{})
	f.check(err)
	granted, used := map[string]bool{}, map[string]bool{}
	for _, rule := range role.Rules {
		for _, verb := range rule.Verbs {
			for _, resource := range rule.Resources {
				if slices.Contains(rule.APIGroups, lifecyclev1alpha1.GroupName) {
					granted[verb+" "+resource] = true
				}
			}
		}
	}
	events, err := f.ReadAuditLog(controlplane.AuditFilter{User: "system:serviceaccount:" + testbed.AgentNamespace + ":" + testbed.AgentAccount})
	f.check(err)
	for _, e := range events {
		if e.ResponseStatus != nil && e.ResponseStatus.Code == http.StatusForbidden {
			raw, _ := json.Marshal(e.ResponseStatus)
			f.t.Errorf("forbidden: %s %s: %s", e.Verb, e.RequestURI, raw)
		}
		if e.ObjectRef != nil && e.ObjectRef.APIGroup == lifecyclev1alpha1.GroupName {
			used[e.Verb+" "+e.ObjectRef.Resource] = true
		}
	}
	for right := range granted {
		if !used[right] {
			f.t.Errorf("granted and never used: %s", right)
		}
	}
	for right := range used {
		if !granted[right] {
			f.t.Errorf("used and not granted: %s", right)
		}
	}
}
