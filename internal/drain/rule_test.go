package drain

import (
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/protection"
)

func TestEachKindOfPodHasItsRuleAndItsActionUnderBothPolicies(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	hourOld := createdAt(now.Add(-time.Hour))
	for _, c := range []struct {
		name              string
		changes           []change
		rule              Rule
		voluntary, notice Action
	}{
		{"ordinary", nil, Ordinary, Evict, Evict},
		{"mirror", []change{annotation(mirrorAnnotation, "hash"), unowned}, Mirror, Leave, Leave},
		{"mirror that is terminating", []change{annotation(mirrorAnnotation, "hash"), deleted(0, time.Minute)}, Mirror, Leave, Leave},
		{"DaemonSet", []change{ownedBy("DaemonSet")}, DaemonSet, Leave, Leave},
		{"DaemonSet with local storage", []change{ownedBy("DaemonSet"), emptyDir}, DaemonSet, Leave, Leave},
		{"terminating", []change{deleted(0, time.Minute)}, Terminating, Await, Await},
		{"terminating and protected", []change{deleted(0, time.Minute), annotation(protection.DoNotEvict, "true")}, Terminating, Await, Await},
		{"succeeded and unmanaged", []change{phase("Succeeded"), unowned}, Finished, Evict, Evict},
		{"failed and protected", []change{phase("Failed"), annotation(protection.SafeToEvict, "false")}, Finished, Evict, Evict},
		{"safe-to-evict false", []change{annotation(protection.SafeToEvict, "false")}, Protected, Refuse, Evict},
		{"safe-to-evict in another spelling", []change{annotation(protection.SafeToEvict, " False")}, Protected, Refuse, Evict},
		{"safe-to-evict true", []change{annotation(protection.SafeToEvict, "true")}, Ordinary, Evict, Evict},
		{"do-not-disrupt true", []change{annotation(protection.DoNotDisrupt, "true")}, Protected, Refuse, Evict},
		{"do-not-disrupt for longer than the pod's age", []change{annotation(protection.DoNotDisrupt, "2h"), hourOld}, Protected, Refuse, Evict},
		{"do-not-disrupt expired", []change{annotation(protection.DoNotDisrupt, "30m"), hourOld}, Ordinary, Evict, Evict},
		{"do-not-disrupt expiring now", []change{annotation(protection.DoNotDisrupt, "1h"), hourOld}, Ordinary, Evict, Evict},
		{"do-not-disrupt for a negative time", []change{annotation(protection.DoNotDisrupt, "-1h"), hourOld}, Ordinary, Evict, Evict},
		{"do-not-disrupt unreadable", []change{annotation(protection.DoNotDisrupt, "maybe")}, Ordinary, Evict, Evict},
		{"do-not-evict true", []change{annotation(protection.DoNotEvict, "true")}, Protected, Refuse, Evict},
		{"do-not-evict false", []change{annotation(protection.DoNotEvict, "false")}, Ordinary, Evict, Evict},
		{"unmanaged", []change{unowned}, Unmanaged, Refuse, Evict},
		{"owner that is no controller", []change{func(p *simPod) {
			p.OwnerReferences = []kubeapi.OwnerReference{{Kind: "ReplicaSet", Name: "web"}}
		}}, Unmanaged, Refuse, Evict},
		{"protected and unmanaged", []change{unowned, annotation(protection.DoNotEvict, "true")}, Protected, Refuse, Evict},
		{"local storage", []change{emptyDir}, LocalStorage, Refuse, Evict},
		{"local storage, safe to evict", []change{emptyDir, annotation(protection.SafeToEvict, "true")}, LocalStorage, Evict, Evict},
		{"local storage of no worth", []change{emptyDir, annotation(protection.SafeLocalVolumes, "tmp,scratch")}, LocalStorage, Evict, Evict},
		{"local storage of worth", []change{emptyDir, annotation(protection.SafeLocalVolumes, "tmp")}, LocalStorage, Refuse, Evict},
		{"unmanaged, safe to evict", []change{unowned, annotation(protection.SafeToEvict, "true")}, Unmanaged, Evict, Evict},
		{"local storage, but safe", []change{emptyDir, annotation(protection.SafeToEvict, "true")}, LocalStorage, Evict, Evict},
		{"local storage of no worth", []change{emptyDir, annotation(protection.SafeLocalVolumes, "tmp,scratch")}, LocalStorage, Evict, Evict},
		{"other local storage of no worth", []change{emptyDir, annotation(protection.SafeLocalVolumes, "tmp")}, LocalStorage, Refuse, Evict},
		{"unmanaged, but safe", []change{unowned, annotation(protection.SafeToEvict, "true")}, Unmanaged, Evict, Evict},
		{"storage in memory", []change{inMemory}, Ordinary, Evict, Evict},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newSim().pod("web", c.changes...)
			v := Classify(&p.Pod, now)
			if v.Rule != c.rule {
				t.Fatalf("rule %s (%s), want %s", v.Rule, v.Detail, c.rule)
			}
			if c.rule != Ordinary && v.Detail == "" {
				t.Error("no word on why")
			}
			if _, a := VoluntaryPolicy().Judge(&p.Pod, now); a != c.voluntary {
				t.Errorf("voluntary: %s, want %s", a, c.voluntary)
			}
			if _, a := NoticePolicy().Judge(&p.Pod, now); a != c.notice {
				t.Errorf("notice: %s, want %s", a, c.notice)
			}
		})
	}
}

func TestLeaveToLoseOneThingIsNoLeaveToLoseAnother(t *testing.T) {
	held, safe := annotation(protection.DoNotEvict, "true"), annotation(protection.SafeToEvict, "true")
	forced := func(some ...Rule) Policy {
		p := VoluntaryPolicy()
		for _, r := range some {
			p[r] = Evict
		}
		return p
	}
	left := func(some ...Rule) Policy { // what survives an interruption is left where it is
		p := NoticePolicy()
		for _, r := range some {
			p[r] = Leave
		}
		return p
	}
	for _, c := range []struct {
		name    string
		policy  Policy
		changes []change
		rule    Rule
		action  Action
	}{
		{"protected, overridden", forced(Protected), []change{held}, Protected, Evict},
		{"protected and unmanaged, overridden", forced(Protected), []change{held, unowned}, Unmanaged, Refuse},
		{"protected with local storage, overridden", forced(Protected), []change{held, emptyDir}, LocalStorage, Refuse},
		{"unmanaged with local storage, forced", forced(Unmanaged), []change{unowned, emptyDir}, LocalStorage, Refuse},
		{"unmanaged with local storage, both forced", forced(Unmanaged, LocalStorage), []change{unowned, emptyDir}, Unmanaged, Evict},
		{"all three, all forced", forced(Protected, Unmanaged, LocalStorage), []change{held, unowned, emptyDir}, Protected, Evict},
		{"finished, with local storage and unmanaged", forced(), []change{phase("Succeeded"), unowned, emptyDir}, Finished, Evict},
		{"safe to evict, unmanaged with local storage", forced(), []change{safe, unowned, emptyDir}, Unmanaged, Evict},
		{"safe to evict and protected", forced(), []change{safe, held}, Protected, Refuse},
		{"what nobody would replace stays, protected or not", left(Unmanaged), []change{held, unowned}, Unmanaged, Leave},
		{"what nobody would replace stays, safe to evict or not", left(Unmanaged), []change{safe, unowned}, Unmanaged, Leave},
		{"what is stored stays, safe to evict or not", left(LocalStorage), []change{safe, emptyDir}, LocalStorage, Leave},
	} {
		v, action := c.policy.Judge(&newSim().pod("web", c.changes...).Pod, time.Now())
		if v.Rule != c.rule || action != c.action {
			t.Errorf("%s: %s by %s, want %s by %s", c.name, action, v.Rule, c.action, c.rule)
		}
	}
}

func TestAPolicyWithoutARuleEvicts(t *testing.T) {
	if a := (Policy{}).Of(Unmanaged); a != Evict {
		t.Error(a)
	}
}

func TestHowAPodEnded(t *testing.T) {
	told := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	exited := func(code int, at time.Time, reason string) func(p *kubeapi.Pod) {
		return func(p *kubeapi.Pod) {
			var q simPod
			q.exit(code, at)
			q.Status.ContainerStatuses[0].State.Terminated.Reason = reason
			p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, q.Status.ContainerStatuses...)
		}
	}
	running := func(p *kubeapi.Pod) {
		p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, kubeapi.ContainerStatus{Name: "side"})
	}
	for _, c := range []struct {
		name       string
		containers []func(p *kubeapi.Pod)
		want       End
	}{
		{"nothing said", nil, Vanished},
		{"one still running", []func(*kubeapi.Pod){exited(0, told, ""), running}, Vanished},
		{"all by themselves", []func(*kubeapi.Pod){exited(0, told, ""), exited(143, told, "Error")}, Stopped},
		{"one killed", []func(*kubeapi.Pod){exited(0, told, ""), exited(137, told.Add(30*time.Second), "Error")}, Killed},
		{"one killed long before", []func(*kubeapi.Pod){exited(137, told.Add(-time.Hour), "Error"), exited(0, told, "")}, Stopped},
		{"out of memory while stopping", []func(*kubeapi.Pod){exited(137, told.Add(time.Second), "OOMKilled")}, Stopped},
	} {
		t.Run(c.name, func(t *testing.T) {
			var p kubeapi.Pod
			for _, add := range c.containers {
				add(&p)
			}
			if end := endOf(&p, told); end != c.want {
				t.Errorf("%s, want %s", end, c.want)
			}
		})
	}
}

func TestSilentGraces(t *testing.T) {
	for _, c := range []struct {
		spec, override *int64
		want           time.Duration
	}{
		{nil, nil, 30 * time.Second},
		{ptr(int64(5)), nil, 5 * time.Second},
		{ptr(int64(0)), nil, 0},
		{ptr(int64(-7)), nil, time.Second},
		{ptr(int64(5)), ptr(int64(60)), time.Minute},
		{ptr(int64(5)), ptr(int64(0)), 0},
		{ptr(int64(5)), ptr(int64(-1)), 5 * time.Second},
	} {
		var p kubeapi.Pod
		p.Spec.TerminationGracePeriodSeconds = c.spec
		if got := wantedGrace(&p, c.override); got != c.want {
			t.Errorf("spec %v, override %v: %s, want %s", c.spec, c.override, got, c.want)
		}
	}
}
