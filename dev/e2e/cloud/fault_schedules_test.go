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
	schedules     = flag.Int("schedules", 16, "how many random fault schedules to run")
	firstSchedule = flag.Uint64("schedules.first", 1, "seed of the first schedule")
)

// schedule launches and deletes instances in a group. Its Azure fails at random.
type schedule struct {
	*rand.Rand
	t      *testing.T
	c      *azureCloud
	p      *azure.Provider
	config azure.Config
	want   int // instances
	log    []string
}

func newSchedule(t *testing.T, seed uint64) *schedule {
	g := rand.New(rand.NewPCG(seed, 7))
	pick := func(list ...time.Duration) time.Duration { return list[g.IntN(len(list))] }
	options := emulator.ARMOptions{
		PageSize: 1 + g.IntN(5), SerializeChanges: g.IntN(2) == 0, BootTime: pick(0, 20*time.Millisecond), DeleteTime: pick(0, 20*time.Millisecond),
		OperationHeaders: []emulator.OperationHeaders{"", emulator.AsyncOperationHeader, emulator.LocationHeader}[g.IntN(3)],
	}
	k := []kind{uniform, flexible, agentPool}[g.IntN(3)]
	c := newAzureWith(t, k, options, emulator.ScaleSetSpec{Overprovision: g.IntN(3) == 0}, emulator.AgentPoolSpec{SeparateCount: g.IntN(2) == 0})
	config := c.config()
	window := cloud.Duration(5 * time.Millisecond)
	config.BatchWindow, config.RequestTimeout = &window, cloud.Duration(time.Second)
	return &schedule{Rand: g, t: t, c: c, p: c.provider(t, config), config: config, want: c.GroupSize()}
}

func (s *schedule) note(format string, args ...any) {
	s.log = append(s.log, fmt.Sprintf(format, args...))
}

// fault draws a random fault of requests, operations, creations, or deletions.
func (s *schedule) fault() emulator.ARMFault {
	actions := []string{sizeAction(s.c.kind), setDelete, poolDelete, sizeAction(s.c.kind), "Microsoft.Compute/locations/operations/read",
		"Microsoft.ContainerService/locations/operations/read", "Microsoft.Compute/virtualMachineScaleSets/read", ""}
	var faults []emulator.ARMFault
	for _, f := range lostResponseFaults() {
		kept := f
		kept.Processed = false
		faults = append(faults, f, f, kept)
	}
	slices.SortFunc(faults, func(a, b emulator.ARMFault) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	f := faults[s.IntN(len(faults))]
	switch s.IntN(9) {
	case 0:
		f = emulator.ARMFault{Kind: emulator.ARMStatus, Status: http.StatusPreconditionFailed, Code: "PreconditionFailed"}
	case 1:
		f = emulator.ARMFault{Kind: []emulator.ARMFaultKind{emulator.ARMBusy, emulator.ARMThrottled, emulator.ARMDenied}[s.IntN(3)]}
	case 2:
		f = emulator.ARMFault{Kind: emulator.ARMStatus, Status: http.StatusConflict, Code: "OperationPreempted"}
	case 3:
		return emulator.ARMFault{Kind: emulator.ARMAllocationFails, Times: 1}
	case 4:
		return emulator.ARMFault{Kind: emulator.ARMCreationFails, Times: 1 + s.IntN(2)}
	case 5:
		return emulator.ARMFault{Kind: emulator.ARMDeletionFails, Times: 1 + s.IntN(2), Code: []string{"", "OperationPreempted"}[s.IntN(2)]}
	case 6:
		return emulator.ARMFault{Kind: emulator.ARMStale, Times: 1 + s.IntN(3)}
	}
	f.Action, f.Times = actions[s.IntN(len(actions))], 1+s.IntN(3)
	return f
}

// run executes some steps. After each step it ends the faults, and the group must reach the wanted state.
func (s *schedule) run() {
	for range 2 + s.IntN(5) {
		for range s.IntN(4) {
			f := s.fault()
			s.note("fault %+v", f)
			inject(s.t, s.c, f)
		}
		switch s.IntN(4) {
		case 0, 1:
			s.want += 1 + s.IntN(3)
			s.note("want %d", s.want)
			s.converge(8)
		case 2:
			s.launchConcurrently()
		default:
			s.deleteRandom()
		}
		s.c.ARM.ClearFaults()
		s.note("faults cleared")
		if !s.converge(200) {
			s.t.Fatalf("the group does not reach %d instances: its size is %d, with %+v\n%s", s.want, s.c.GroupSize(), s.c.VMs(), s.history())
		}
	}
}

func (s *schedule) history() string {
	text := fmt.Sprintf("%s %+v", s.c.kind, s.config.Groups)
	for _, line := range s.log {
		text += "\n" + line
	}
	for _, q := range s.c.Requests() {
		if q.Method != http.MethodGet {
			text += fmt.Sprintf("\n%s %s %d %.200s", q.Method, q.Path, q.Status, q.Body)
		}
	}
	return text
}

// check fails if the group launched more instances than wanted.
func (s *schedule) check() {
	if n := s.c.GroupSize(); n > s.want {
		s.t.Fatalf("the size is %d, and %d instances are wanted\n%s", n, s.want, s.history())
	}
}

// converge reads the group and launches missing instances, with a limited number of tries. It reports whether the group
// is as wanted.
func (s *schedule) converge(tries int) bool {
	for range tries {
		if s.step() {
			return true
		}
		s.check()
		time.Sleep(5 * time.Millisecond)
	}
	return false
}

func (s *schedule) step() (done bool) {
	g, err := s.p.Group(s.t.Context(), s.c.Group())
	if err != nil {
		s.note("Group: %v", err)
		return false
	}
	list, err := s.p.Instances(s.t.Context(), s.c.Group())
	if err != nil {
		s.note("Instances: %v", err)
		return false
	}
	live := 0
	for _, i := range list {
		switch i.State {
		case cloud.Failed:
			s.delete(i.ProviderID) // deleted like an instance that was never created
			return false
		case cloud.Deleting:
			return false
		}
		live++
	}
	failed := 0
	if g.CanRetryFailed {
		failed = max(0, g.Size-live)
	}
	count := s.want - g.Size + failed
	if count <= 0 {
		return g.CanRetryFailed && g.Size == s.want && live == s.want
	}
	s.launch(s.p, cloud.LaunchRequest{Count: count, RetryFailed: min(count, failed)})
	return false
}

// launch requests instances and follows the operation.
func (s *schedule) launch(p *azure.Provider, request cloud.LaunchRequest) error {
	op, err := p.Grow(s.t.Context(), s.c.Group(), request)
	if err != nil {
		return err
	}
	for i := range 50 {
		if i > 10 {
			op.Started = op.Started.Add(-time.Hour)
		}
		if status, err := p.Status(s.t.Context(), op); err == nil && status.Done {
			return nil
		}
		time.Sleep(5 * time.Millisecond)
	}
	s.t.Errorf("an operation never ends: %+v\n%s", op, s.history())
	return nil
}

// launchConcurrently makes two processes launch one instance each at the same time.
func (s *schedule) launchConcurrently() {
	before := s.c.GroupSize()
	other := s.c.provider(s.t, s.config)
	var taken, lost int
	var mu sync.Mutex
	var both sync.WaitGroup
	for _, p := range []*azure.Provider{s.p, other} {
		both.Go(func() {
			err := s.launch(p, cloud.LaunchRequest{Count: 1})
			mu.Lock()
			defer mu.Unlock()
			s.note("of two launches: %v", err)
			switch {
			case err == nil:
				taken++
			case cloud.RefusalOf(err) == "" && !cloud.IsThrottled(err):
				lost++
			}
		})
	}
	both.Wait()
	if n := s.c.GroupSize() - before; n < taken || n > taken+lost {
		s.t.Fatalf("the size went from %d to %d: %d launches were accepted, and %d got no response\n%s", before, before+n, taken, lost, s.history())
	}
	s.want = s.c.GroupSize()
}

// deleteRandom deletes instances in parallel and waits for each.
func (s *schedule) deleteRandom() {
	ids := s.c.ProviderIDs()
	s.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	ids = ids[:min(len(ids), 1+s.IntN(3))]
	s.want -= len(ids)
	s.note("delete %q", ids)
	var all sync.WaitGroup
	for _, id := range ids {
		all.Go(func() { s.delete(id) })
	}
	all.Wait()
}

// delete deletes an instance as a retirement does. It retries only if the deletion has failed.
func (s *schedule) delete(id string) {
	var op *cloud.Operation
	for i := range 400 {
		if i == 20 {
			s.c.ARM.ClearFaults() // what follows must complete
		}
		time.Sleep(5 * time.Millisecond)
		m, err := s.p.Instance(s.t.Context(), id)
		switch {
		case cloud.IsNotFound(err):
			return
		case err != nil:
			continue
		case op == nil:
			if asked, err := s.p.Delete(s.t.Context(), id); err == nil {
				op = &asked
			}
			continue
		}
		if i%10 == 9 {
			op.Started = op.Started.Add(-time.Hour)
		}
		status := cloud.OperationStatus{Done: m.State != cloud.Deleting}
		if op.ID != "" {
			status, err = s.p.Status(s.t.Context(), *op)
		}
		if err == nil && status.Done && m.State != cloud.Deleting {
			op = nil
		}
	}
	s.t.Errorf("the deletion of %s never ends: %+v\n%s", id, op, s.history())
}

func TestI5FaultSchedulesLaunchNoExtraInstance(t *testing.T) {
	t.Parallel()
	for seed := *firstSchedule; seed < *firstSchedule+uint64(*schedules); seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			newSchedule(t, seed).run()
		})
	}
}
