package cloud_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	emulator "github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cloud/azure"
)

var (
	courses     = flag.Int("courses", 16, "how many random courses of a failing Azure to run")
	firstCourse = flag.Uint64("courses.first", 1, "seed of the first course")
)

// course launches and deletes instances in a group. Its Azure fails at random.
type course struct {
	*rand.Rand
	t      *testing.T
	c      *azureCloud
	p      *azure.Provider
	config azure.Config
	want   int // instances
	log    []string
}

func newCourse(t *testing.T, seed uint64) *course {
	g := rand.New(rand.NewPCG(seed, 7))
	pick := func(list ...time.Duration) time.Duration { return list[g.IntN(len(list))] }
	options := emulator.ARMOptions{
		PageSize: 1 + g.IntN(5), SerializeChanges: g.IntN(2) == 0, BootTime: pick(0, 20*time.Millisecond), DeleteTime: pick(0, 20*time.Millisecond),
		OperationHeaders: []emulator.OperationHeaders{"", emulator.AsyncOperationHeader, emulator.LocationHeader}[g.IntN(3)],
	}
	k := []kind{uniform, flexible, agentPool}[g.IntN(3)]
	c := newAzureLike(t, k, options, emulator.ScaleSetSpec{Overprovision: g.IntN(3) == 0}, emulator.AgentPoolSpec{SeparateCount: g.IntN(2) == 0})
	config := c.config()
	window := cloud.Duration(5 * time.Millisecond)
	config.BatchWindow, config.RequestTimeout = &window, cloud.Duration(time.Second)
	return &course{Rand: g, t: t, c: c, p: c.provider(t, config), config: config, want: c.GroupSize()}
}

func (r *course) note(format string, args ...any) {
	r.log = append(r.log, fmt.Sprintf(format, args...))
}

// fault draws a random fault of requests, operations, creations, or deletions.
func (r *course) fault() emulator.ARMFault {
	actions := []string{sizeAction(r.c.kind), setDelete, poolDelete, sizeAction(r.c.kind), "Microsoft.Compute/locations/operations/read",
		"Microsoft.ContainerService/locations/operations/read", "Microsoft.Compute/virtualMachineScaleSets/read", ""}
	var faults []emulator.ARMFault
	for _, f := range lostAnswers() {
		kept := f
		kept.Processed = false
		faults = append(faults, f, f, kept)
	}
	slices.SortFunc(faults, func(a, b emulator.ARMFault) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	f := faults[r.IntN(len(faults))]
	switch r.IntN(9) {
	case 0:
		f = emulator.ARMFault{Kind: emulator.ARMStatus, Status: http.StatusPreconditionFailed, Code: "PreconditionFailed"}
	case 1:
		f = emulator.ARMFault{Kind: []emulator.ARMFaultKind{emulator.ARMBusy, emulator.ARMThrottled, emulator.ARMDenied}[r.IntN(3)]}
	case 2:
		f = emulator.ARMFault{Kind: emulator.ARMStatus, Status: http.StatusConflict, Code: "OperationPreempted"}
	case 3:
		return emulator.ARMFault{Kind: emulator.ARMAllocationFails, Times: 1}
	case 4:
		return emulator.ARMFault{Kind: emulator.ARMCreationFails, Times: 1 + r.IntN(2)}
	case 5:
		return emulator.ARMFault{Kind: emulator.ARMDeletionFails, Times: 1 + r.IntN(2), Code: []string{"", "OperationPreempted"}[r.IntN(2)]}
	case 6:
		return emulator.ARMFault{Kind: emulator.ARMStale, Times: 1 + r.IntN(3)}
	}
	f.Action, f.Times = actions[r.IntN(len(actions))], 1+r.IntN(3)
	return f
}

// run executes some steps. After each step it ends the faults, and the group must reach the wanted state.
func (r *course) run() {
	for range 2 + r.IntN(5) {
		for range r.IntN(4) {
			f := r.fault()
			r.note("fault %+v", f)
			inject(r.t, r.c, f)
		}
		switch r.IntN(4) {
		case 0, 1:
			r.want += 1 + r.IntN(3)
			r.note("want %d", r.want)
			r.converge(8)
		case 2:
			r.race()
		default:
			r.deleteSome()
		}
		r.c.ARM.ClearFaults()
		r.note("faults cleared")
		if !r.converge(200) {
			r.t.Fatalf("the group does not become what is wanted, %d instances: its size is %d, with %+v\n%s", r.want, r.c.GroupSize(), r.c.VMs(), r.story())
		}
	}
}

func (r *course) story() string {
	text := fmt.Sprintf("%s %+v", r.c.kind, r.config.Groups)
	for _, line := range r.log {
		text += "\n" + line
	}
	for _, q := range r.c.Requests() {
		if q.Method != http.MethodGet {
			text += fmt.Sprintf("\n%s %s %d %.200s", q.Method, q.Path, q.Status, q.Body)
		}
	}
	return text
}

// check fails if the group launched more instances than wanted.
func (r *course) check() {
	if n := r.c.GroupSize(); n > r.want {
		r.t.Fatalf("the size is %d, and %d instances are wanted\n%s", n, r.want, r.story())
	}
}

// converge reads the group and launches missing instances, with a limited number of tries. It reports whether the group
// is as wanted.
func (r *course) converge(tries int) bool {
	for range tries {
		if r.step() {
			return true
		}
		r.check()
		time.Sleep(5 * time.Millisecond)
	}
	return false
}

func (r *course) step() (done bool) {
	g, err := r.p.Group(r.t.Context(), r.c.Group())
	if err != nil {
		r.note("Group: %v", err)
		return false
	}
	list, err := r.p.Instances(r.t.Context(), r.c.Group())
	if err != nil {
		r.note("Instances: %v", err)
		return false
	}
	live := 0
	for _, i := range list {
		switch i.State {
		case cloud.Failed:
			r.delete(i.ProviderID) // deleted like an instance that was never created
			return false
		case cloud.Deleting:
			return false
		}
		live++
	}
	unmade := 0
	if g.CanRetryFailed {
		unmade = max(0, g.Size-live)
	}
	count := r.want - g.Size + unmade
	if count <= 0 {
		return g.CanRetryFailed && g.Size == r.want && live == r.want
	}
	r.launch(r.p, cloud.LaunchRequest{Count: count, RetryFailed: min(count, unmade)})
	return false
}

// launch requests instances and follows the operation.
func (r *course) launch(p *azure.Provider, order cloud.LaunchRequest) error {
	op, err := p.Grow(r.t.Context(), r.c.Group(), order)
	if err != nil {
		return err
	}
	for i := range 50 {
		if i > 10 {
			op.Started = op.Started.Add(-time.Hour)
		}
		if status, err := p.Status(r.t.Context(), op); err == nil && status.Done {
			return nil
		}
		time.Sleep(5 * time.Millisecond)
	}
	r.t.Errorf("an operation does not end: %+v\n%s", op, r.story())
	return nil
}

// race makes two processes launch one instance each at the same time.
func (r *course) race() {
	before := r.c.GroupSize()
	other := r.c.provider(r.t, r.config)
	var taken, lost int
	var mu sync.Mutex
	var both sync.WaitGroup
	for _, p := range []*azure.Provider{r.p, other} {
		both.Go(func() {
			err := r.launch(p, cloud.LaunchRequest{Count: 1})
			mu.Lock()
			defer mu.Unlock()
			r.note("of two launches: %v", err)
			switch {
			case err == nil:
				taken++
			case cloud.RefusalOf(err) == "" && !cloud.IsThrottled(err):
				lost++
			}
		})
	}
	both.Wait()
	if n := r.c.GroupSize() - before; n < taken || n > taken+lost {
		r.t.Fatalf("the size went from %d to %d: %d launches were accepted, and %d have no answer\n%s", before, before+n, taken, lost, r.story())
	}
	r.want = r.c.GroupSize()
}

// deleteSome deletes instances in parallel and waits for each.
func (r *course) deleteSome() {
	ids := r.c.ProviderIDs()
	r.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	ids = ids[:min(len(ids), 1+r.IntN(3))]
	r.want -= len(ids)
	r.note("delete %q", ids)
	var all sync.WaitGroup
	for _, id := range ids {
		all.Go(func() { r.delete(id) })
	}
	all.Wait()
}

// delete deletes an instance as a retirement does. It retries only if the deletion has failed.
func (r *course) delete(id string) {
	var op *cloud.Operation
	for i := range 400 {
		if i == 20 {
			r.c.ARM.ClearFaults() // what follows must complete
		}
		time.Sleep(5 * time.Millisecond)
		m, err := r.p.Instance(r.t.Context(), id)
		switch {
		case cloud.IsNotFound(err):
			return
		case err != nil:
			continue
		case op == nil:
			if asked, err := r.p.Delete(r.t.Context(), id); err == nil {
				op = &asked
			}
			continue
		}
		if i%10 == 9 {
			op.Started = op.Started.Add(-time.Hour)
		}
		status := cloud.OperationStatus{Done: m.State != cloud.Deleting}
		if op.ID != "" {
			status, err = r.p.Status(r.t.Context(), *op)
		}
		if err == nil && status.Done && m.State != cloud.Deleting {
			op = nil
		}
	}
	r.t.Errorf("the deletion of %s does not end: %+v\n%s", id, op, r.story())
}

func TestI5NoCourseOfAFailingAzureLaunchesTooMany(t *testing.T) {
	for seed := *firstCourse; seed < *firstCourse+uint64(*courses); seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			newCourse(t, seed).run()
		})
	}
}
