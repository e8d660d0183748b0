package surge_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/fakecluster"
	"github.com/slipway-dev/slipway/dev/faultproxy"
	"github.com/slipway-dev/slipway/dev/testbed"
)

var (
	seeds     = flag.Int("surge.seeds", 24, "how many random interleavings of surges and other writers to run")
	firstSeed = flag.Int("surge.first", 1, "the first of them")
)

// sizedBy is what sizes the Deployment of an interleaving.
type sizedBy string

const (
	byUser       sizedBy = "user"
	byGitOps     sizedBy = "GitOps"
	byAutoscaler sizedBy = "autoscaler"
)

// interleaving holds everything that a seed decides.
type interleaving struct {
	seed         uint64
	sizedBy      sizedBy
	replicas     int32
	startSeconds float64
	keepsSize    bool // the autoscaler lowers no size
	// writes are the user's changes of the size, of Git or of the autoscaler. Times are since the notice.
	writes []timedWrite
	// killAt is when the agent is killed and starts again; 0 is never.
	killAt time.Duration
}

type timedWrite struct {
	at   time.Duration
	size int32
	// metrics changes what the autoscaler's metrics call for, instead of its minimum.
	metrics bool
}

func newInterleaving(seed uint64) interleaving {
	random := rand.New(rand.NewPCG(seed, 22))
	in := interleaving{
		seed: seed, sizedBy: []sizedBy{byUser, byGitOps, byAutoscaler}[random.IntN(3)], replicas: 1 + random.Int32N(3),
		startSeconds: float64(2+random.IntN(60)) / 10, keepsSize: random.IntN(3) == 0,
	}
	// The writes fall into the surges: each pod needs one, one after the other.
	surges := time.Duration(float64(in.replicas) * (in.startSeconds + 2) * float64(time.Second))
	for range 1 + random.IntN(4) {
		in.writes = append(in.writes, timedWrite{
			at: time.Duration(random.Int64N(int64(surges + 2*time.Second))), size: 1 + random.Int32N(4), metrics: random.IntN(3) == 0,
		})
	}
	slices.SortFunc(in.writes, func(a, b timedWrite) int { return int(a.at - b.at) })
	if random.IntN(4) == 0 {
		in.killAt = time.Second + time.Duration(random.Int64N(int64(surges)))
	}
	return in
}

// TestUsersSizeWinsInRandomInterleavings drains a node while a user, a GitOps tool or an autoscaler changes the size of the
// same Deployment. A seed decides what happens when.
func TestUsersSizeWinsInRandomInterleavings(t *testing.T) {
	testbed.UseOneThread(t)
	raises := 0
	for seed := *firstSeed; seed < *firstSeed+*seeds; seed++ {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				in := newInterleaving(uint64(seed))
				t.Logf("%+v\nreplay: cd dev && go test -race ./e2e/surge -run '^%s$' -surge.first=%d -surge.seeds=1", in,
					strings.Split(t.Name(), "/")[0], seed)
				f := inMemory(t, "mixed")
				sizes := f.checkSizes()
				f.runInterleaving(in, sizes)
				raises += sizes.countRaises()
			})
		})
	}
	if *seeds > 20 && raises < *seeds/2 {
		t.Errorf("Slipway raised a size %d times in %d runs: the writes meet too few surges", raises, *seeds)
	}
	testbed.AddSummaryNote(t, fmt.Sprintf("surge: %d random interleavings with users, GitOps and autoscalers in virtual time, %d surges", *seeds, raises))
}

// gitInterval is the interval of the GitOps tool.
const gitInterval = time.Second

// deployment is the name of the only Deployment of an interleaving.
const deployment = "web"

func (f *fixture) runInterleaving(in interleaving, sizes *sizeChecker) {
	f.t.Helper()
	app := f.app(deployment, in.replicas)
	app.StartSeconds = strconv.FormatFloat(in.startSeconds, 'f', 1, 64)
	all := []runtime.Object{app.Deployment(), app.PodDisruptionBudget(), app.Service()}
	if in.sizedBy == byAutoscaler {
		hpa := f.autoscaler(deployment, new(in.replicas), 5)
		hpa.Annotations = map[string]string{fakecluster.DesiredReplicasAnnotation: fmt.Sprint(in.replicas)}
		if in.keepsSize {
			hpa.Annotations[fakecluster.ScaleDownAnnotation] = controlplane.Never
		}
		all = append(all, hpa)
	}
	f.runAtHome(all...)
	git := (*gitOps)(nil)
	if in.sizedBy == byGitOps {
		git = f.startGitOps(deployment, in.replicas, gitInterval)
	}
	f.startInProcess(1, faultproxy.New(kindOf))
	a := f.startInProcess(home, faultproxy.New(kindOf))
	e := f.announce(azure.Announcement{Type: azure.Terminate, Notice: 90 * time.Second})
	began := time.Now()

	var others sync.WaitGroup
	others.Go(func() {
		for _, w := range in.writes {
			time.Sleep(time.Until(began.Add(w.at)))
			if err := f.write(in, git, w); err != nil {
				f.t.Errorf("%+v: %v", w, err)
			}
		}
	})
	if in.killAt > 0 {
		others.Go(func() {
			time.Sleep(time.Until(began.Add(in.killAt)))
			if err := a.KillIfAlive(); err != nil {
				f.t.Error(err)
			}
			time.Sleep(time.Second)
			if err := a.RestartIfDead(context.WithoutCancel(f.ctx)); err != nil {
				f.t.Error(err)
			}
		})
	}
	_, err := f.AwaitNotice(f.ctx, e.EventID, "ended", func(r azure.EventRecord) bool { return !r.IsListed() })
	others.Wait()
	f.check(err)
	if git != nil {
		time.Sleep(2 * gitInterval) // the last commit is applied
		git.stopAndWait()           // so that it hides no fault
	}
	f.awaitNoTraces(restoreTime, nil)
	time.Sleep(restoreTime) // nobody writes any more
	for _, fault := range sizes.describeUnrestored() {
		f.t.Error(fault)
	}
	d, err := f.Client().AppsV1().Deployments(f.ns).Get(f.ctx, deployment, metav1.GetOptions{})
	f.check(err)
	switch size := *d.Spec.Replicas; in.sizedBy {
	case byGitOps:
		if size != git.size {
			f.t.Errorf("the Deployment has %d replicas, Git has %d", size, git.size)
		}
	case byAutoscaler:
		hpa, err := f.Client().AutoscalingV2().HorizontalPodAutoscalers(f.ns).Get(f.ctx, deployment, metav1.GetOptions{})
		f.check(err)
		desired, err := strconv.Atoi(hpa.Annotations[fakecluster.DesiredReplicasAnnotation])
		f.check(err)
		if want := max(int32(desired), *hpa.Spec.MinReplicas); size < want || size > want && !in.keepsSize {
			f.t.Errorf("the Deployment has %d replicas, want %d", size, want)
		}
	}
	if d.Status.ReadyReplicas != *d.Spec.Replicas {
		f.t.Errorf("%d of %d replicas are ready", d.Status.ReadyReplicas, *d.Spec.Replicas)
	}
}

// write makes one change of the user.
func (f *fixture) write(in interleaving, git *gitOps, w timedWrite) error {
	switch {
	case in.sizedBy == byGitOps:
		git.commit(w.size)
		return nil
	case in.sizedBy == byUser:
		return f.scaleAsUser(deployment, func(now int32) int32 {
			if now == w.size {
				return now + 2
			}
			return w.size
		})
	case w.metrics:
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"%d"}}}`, fakecluster.DesiredReplicasAnnotation, w.size)
		_, err := f.Client().AutoscalingV2().HorizontalPodAutoscalers(f.ns).Patch(f.ctx, deployment, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	}
	return f.setMinimumAsUser(deployment, func(now int32) int32 {
		if now == w.size {
			return 1 + now%4
		}
		return w.size
	})
}
