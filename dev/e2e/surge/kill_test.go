package surge_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/faultproxy"
	"github.com/slipway-dev/slipway/dev/testbed"
)

// recordsReadTime is the longest time between two reads of the records by an agent. The reads come at random times, and a
// drain may end before the first.
const recordsReadTime = 30 * time.Second

// afterKill is what follows the kill of the draining agent.
type afterKill string

const (
	// restarted: the kubelet starts the agent again, and the drain has to end.
	restarted afterKill = "restarted"
	// dead: the agent does not start again before the agent of another node has restored the sizes.
	dead afterKill = "dead"
)

// TestI11KillsInVirtualTime kills the draining agent at each request that it makes. It kills once before the agent sends the
// request, and for a write once after the answer. A first run without a kill records the requests. Each request and each
// moment then gets its own run, once with and once without a restart.
func TestI11KillsInVirtualTime(t *testing.T) {
	testbed.UseOneThread(t)
	points, raises := 0, 0
	for _, then := range []afterKill{restarted, dead} {
		t.Run(string(then), func(t *testing.T) {
			run := func(t *testing.T, at faultproxy.RequestID, moment faultproxy.Moment) (seen []faultproxy.Request) {
				synctest.Test(t, func(t *testing.T) {
					f := inMemory(t, "kill")
					sizes := f.checkSizes()
					seen = f.runKillCourse(then, at, moment)
					raises += sizes.countRaises()
				})
				return seen
			}
			seen, again := run(t, faultproxy.RequestID{}, ""), run(t, faultproxy.RequestID{}, "")
			chosen := chooseKills(seen, again, then)
			t.Logf("one drain takes %d requests, %d kills: %s", len(seen), faultproxy.CountKillPoints(chosen), faultproxy.FormatKinds(seen))
			points += faultproxy.CountKillPoints(chosen)
			faultproxy.RunAtEachRequest(t, chosen, t.Errorf, func(t *testing.T, _ int, at faultproxy.RequestID, moment faultproxy.Moment) []faultproxy.Request {
				return run(t, at, moment)
			})
		})
	}
	testbed.AddSummaryNote(t, fmt.Sprintf("surge: %d kills of a draining agent in virtual time, %d surges", points, raises))
}

// courseSizes are the sizes of the Deployments of a kill course.
var courseSizes = map[string]int32{"one": 1, "scaled": 1}

// runKillCourse drains the first instance and kills its agent at the request, if one is given. It checks that no size was
// below its user's wish, and that surges have left nothing (I11). It returns the requests of the draining agents.
func (f *fixture) runKillCourse(then afterKill, at faultproxy.RequestID, moment faultproxy.Moment) []faultproxy.Request {
	f.t.Helper()
	all := objects(f.app("one", courseSizes["one"]))
	all = append(all, objects(f.app("scaled", courseSizes["scaled"]))...)
	all = append(all, f.autoscaler("scaled", new(int32(1)), 3))
	f.runAtHome(all...)
	f.startInProcess(1, faultproxy.New(kindOf))

	proxy := faultproxy.New(kindOf)
	launched := make(chan *testbed.InProcessAgent, 1)
	killed := make(chan struct{})
	proxy.InterruptAt(at, moment, func(r faultproxy.Request) {
		a := <-launched
		if err := a.KillIfAlive(); err != nil {
			f.t.Errorf("killing the agent at %s: %v", r, err)
		}
		if then == restarted {
			if err := a.RestartIfDead(context.WithoutCancel(f.ctx)); err != nil {
				f.t.Error(err)
			}
		}
		close(killed)
	})
	e := f.announce(azure.Announcement{Type: azure.Reboot, Notice: 30 * time.Minute})
	launched <- f.startInProcess(home, proxy)

	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(f.ctx)
	defer cancel()
	go func() {
		_, err := f.AwaitNotice(ctx, e.EventID, "ended", func(r azure.EventRecord) bool { return !r.IsListed() })
		ended <- err
	}()
	select {
	case err := <-ended:
		f.check(err)
		f.awaitNoTraces(restoreTime, courseSizes)
		select {
		case <-killed:
			f.awaitNoTraces(restoreTime, courseSizes)
		case <-time.After(recordsReadTime):
		}
	case <-killed:
		if then == dead {
			f.awaitNoTraces(restoreTime, courseSizes)
			break
		}
		f.check(<-ended)
		f.awaitNoTraces(restoreTime, courseSizes)
	}
	f.checkNoGaps()
	return proxy.Requests()
}

// killsPerKind limits the kills at requests of one kind, because the surges of several pods repeat the same requests.
var killsPerKind = flag.Int("surge.kills", 1, "at how many requests of each kind to kill an agent")

// chooseKills drops the later requests of each kind, and the kinds that another run without a kill did not have, such as the
// list of a broken watch. After a kill without a restart, it also drops reads: a read changes nothing, so a kill at it leaves
// the same state as a kill at the writes around it.
func chooseKills(seen, again []faultproxy.Request, then afterKill) []faultproxy.Request {
	return slices.DeleteFunc(slices.Clone(seen), func(r faultproxy.Request) bool {
		isRare := !slices.ContainsFunc(again, func(o faultproxy.Request) bool { return o.Kind == r.Kind })
		return isRare || r.Nth > *killsPerKind || then == dead && r.Method == http.MethodGet
	})
}

// object matches the part of a path that names one object.
var object = regexp.MustCompile(`/(nodes|pods|namespaces|deployments|replicasets|noderetirements|nodegroups|horizontalpodautoscalers|leases|virtualMachines|scalesets)/[^/]+`)

// kindOf returns a request without its object names.
func kindOf(r faultproxy.Request) string {
	kind := r.Method + " " + strings.TrimPrefix(object.ReplaceAllString(r.Path, "/$1/*"), "/scalesets/*/virtualMachines/*")
	if strings.Contains(r.Query, "watch=true") {
		kind += " (watch)"
	}
	return kind
}

// realKill is a kill of a process on a control plane.
type realKill struct {
	program string
	at      faultproxy.RequestID
	moment  faultproxy.Moment
	then    afterKill
}

func (k realKill) String() string {
	return fmt.Sprintf("%s, %s, %s, %s", k.program, k.at, k.moment, k.then)
}

var (
	allRealKills = flag.Bool("surge.real", false, "kill the real agent and manager at each request of a drain, instead of a few")
	realSurges   = flag.Int("surge.deployments", 1, "how many Deployments surge in each drain with a kill of a real process")
)

// The programs that surge.
const (
	agentProgram   = "agent"
	managerProgram = "manager"
)

// sampledKills are the kills on a control plane without -surge.real.
func sampledKills() (all []realKill) {
	for _, program := range []string{agentProgram, managerProgram} {
		at := func(kind string) faultproxy.RequestID { return faultproxy.RequestID{Kind: kind, Nth: 1} }
		all = append(all,
			realKill{program, at("PUT /apis/apps/v1/namespaces/*/deployments/*/scale"), faultproxy.After, dead},
			realKill{program, at("PATCH /api/v1/namespaces/*/pods/*"), faultproxy.After, dead},
			realKill{program, at("PUT /apis/apps/v1/namespaces/*/deployments/*/scale"), faultproxy.After, restarted},
		)
	}
	return all
}

// TestI11KillsOnControlPlane kills the real agent, and the real manager, at requests of a drain on a control plane. Another agent,
// or the next process, restores the sizes. `make test-kills` kills at all requests of 30 surges.
func TestI11KillsOnControlPlane(t *testing.T) {
	if *allRealKills {
		killAtAllRequests(t)
		return
	}
	t.Parallel()
	for i, k := range sampledKills() {
		t.Run(k.String(), func(t *testing.T) {
			t.Parallel()
			seen := newFixture(t, fmt.Sprintf("i11-%d", i)).runRealKill(k)
			if !slices.ContainsFunc(seen, func(r faultproxy.Request) bool { return r.RequestID == k.at }) {
				t.Errorf("the %s did not send %s", k.program, k.at)
			}
		})
	}
}

// runRealKill drains the first instance with the program, and kills it at the request, if one is given. It returns the
// program's requests.
func (f *fixture) runRealKill(k realKill) []faultproxy.Request {
	f.t.Helper()
	f.checkSizes()
	all, sizes := f.singles(*realSurges, "web", "")
	f.runAtHome(all...)
	f.agent(1)
	proxy := faultproxy.New(kindOf)
	f.t.Cleanup(func() { _ = proxy.Close() })
	launched, killed := make(chan *controlplane.Process, 1), make(chan struct{})
	proxy.InterruptAt(k.at, k.moment, func(faultproxy.Request) {
		defer close(killed)
		var err error
		if p := <-launched; k.then == restarted {
			err = p.Restart(context.WithoutCancel(f.ctx)) // kills it first
		} else {
			err = p.Kill()
		}
		if err != nil && !errors.Is(err, os.ErrProcessDone) { // the test may have ended
			f.t.Error(err)
		}
	})
	launched <- f.startProgram(k.program, proxy)
	emptied := make(chan error, 1)
	ctx, cancel := context.WithCancel(f.ctx)
	defer cancel()
	go func() { emptied <- f.awaitEmpty(ctx) }()
	select {
	case err := <-emptied:
		f.check(err)
	case <-killed:
		if k.then == restarted {
			f.check(<-emptied)
		}
	}
	f.awaitNoTraces(restoreTime, sizes)
	f.checkNoGaps()
	return proxy.Requests()
}

// startProgram starts the program behind the proxy, and lets it drain the first instance.
func (f *fixture) startProgram(program string, proxy *faultproxy.Proxy) *controlplane.Process {
	f.t.Helper()
	if program == managerProgram {
		return f.startManager(proxy)
	}
	p := f.startProxiedAgent(proxy)
	f.announce(azure.Announcement{Type: azure.Reboot, Notice: 15 * time.Minute})
	return p
}

// startProxiedAgent starts the agent of the first instance behind the proxy.
func (f *fixture) startProxiedAgent(proxy *faultproxy.Proxy) *controlplane.Process {
	f.t.Helper()
	credentials, err := f.WriteAgentKubeconfig(f.ctx, f.node(home))
	f.check(err)
	a, err := f.StartAgentNoWait(f.ctx, f.pool, home, append(f.surgeFlags(), "--acknowledge=false",
		"--kubeconfig="+f.WriteProxyKubeconfig(f.t, proxy, credentials))...)
	f.check(err)
	testbed.KillAgentAfterTest(f.t, a)
	return a.Process
}

var managerInstalled struct {
	sync.Once
	err error
}

// installManager installs the manifests of a manager with surges once.
func (f *fixture) installManager() {
	f.t.Helper()
	managerInstalled.Do(func() {
		managerInstalled.err = errors.Join(f.InstallManagerOnce(f.ctx), f.ApplyManifests(f.ctx, "manager/surge/rbac.yaml", "manager/surge/admission.yaml"),
			f.AwaitPermissions(f.ctx, testbed.ManagerNamespace, testbed.ManagerAccount, "slipway-manager-surge"))
	})
	f.check(managerInstalled.err)
}

// resource returns a client of one of Slipway's resources.
func (f *fixture) resource(plural string) dynamic.NamespaceableResourceInterface {
	return dynamic.NewForConfigOrDie(f.RESTConfig()).Resource(v1alpha1.GroupVersion.WithResource(plural))
}

// startManager starts a manager behind the proxy that retires the first instance.
func (f *fixture) startManager(proxy *faultproxy.Proxy) *controlplane.Process {
	f.t.Helper()
	f.installManager()
	f.ARM.AddScaleSet(azure.ScaleSetSpec{Name: f.pool.ScaleSetName()}, f.instances[f.pool.Name])
	labels := map[string]string{shard: f.ns}
	f.check(f.CreateNodeGroup(f.ctx, f.pool.Name, labels, testbed.ScaleSetNodeGroupSpec(f.pool.Name, f.pool.ScaleSetName())+
		"minSize: 0\ndrain: {surge: Always, timeout: 10m}\n"))
	retirement := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"reason": "Requested", "nodeName": f.node(home)}}}
	retirement.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("NodeRetirement"))
	retirement.SetName(f.node(home))
	retirement.SetLabels(labels)
	_, err := f.resource("noderetirements").Create(f.ctx, retirement, metav1.CreateOptions{})
	f.check(err)
	credentials, err := f.ServiceAccountKubeconfig(f.ctx, testbed.ManagerNamespace, testbed.ManagerAccount, controlplane.TokenOptions{})
	f.check(err)
	clouds, err := yaml.Marshal(map[string]any{"azure": f.AzureProviderConfig()})
	f.check(err)
	path, err := testbed.EnsureBinary("slipway")
	f.check(err)
	return f.StartProcessForTest(f.ctx, f.t, controlplane.Command{Name: "manager-" + f.pool.Name, Path: path, Args: []string{
		"manager", "--kubeconfig", f.WriteProxyKubeconfig(f.t, proxy, credentials), "--cloud-config", testbed.WriteTempFile(f.t, "clouds.yaml", string(clouds)),
		"--listen", "", "--leader-elect=false", "--leader-election-namespace", f.recordNamespace, "--selector", shard + "=" + f.ns,
		"--poll-interval", "1s", "--cloud-poll-interval", "500ms", "--retry-interval", "1s",
	}})
}
