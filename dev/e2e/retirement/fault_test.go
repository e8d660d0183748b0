package retirement_test

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipway-dev/slipway/dev/testbed"
)

var (
	seeds     = flag.Int("faults.seeds", number("SLIPWAY_FAULT_SEEDS", 500), "how many schedules of faults to run in virtual time")
	realSeeds = flag.Int("faults.real", 48, "how many of them to run on a control plane too")
	firstSeed = flag.Int("faults.first", 1, "the first of them")
)

// stagesAtOnce is how many schedules run at a time on a control plane, where each waits for most of its time.
const stagesAtOnce = 16

// number reads a flag's default from the environment, so that `make test` can be told.
func number(variable string, fallback int) int {
	text := os.Getenv(variable)
	if text == "" {
		return fallback
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		panic(fmt.Sprintf("%s: %q: want a number", variable, text))
	}
	return n
}

// failedOnce are seeds that have failed and are mended: they come first, so that they are run however little time there is.
var failedOnce = []int{
	421, // a machine that somebody took away was counted as one more that leaves
	151, // the machine was lost between two looks at the end of a retirement that had been given up early
	315, // an old answer about the node was taken for one without the cordon, which stayed until the next sweep
	199, // the node of a retirement that was called off kept its conditions for minutes, as they could not be written once
	122, // an old answer had no record of the cordon, which stayed on a node that was left to another tool
}

// inOrder are so many seeds from the first on, those before all others that failed once.
func inOrder(first, n int) []int {
	var known, others []int
	for seed := first; seed < first+n; seed++ {
		if slices.Contains(failedOnce, seed) {
			known = append(known, seed)
		} else {
			others = append(others, seed)
		}
	}
	return append(known, others...)
}

// What a schedule does to the requests of its manager, beside failing so many of them as the seed says.
const (
	late  = 400 * time.Millisecond
	stale = 2 * time.Second
)

// TestWhateverFailsEveryRetirementEndsAndNoInvariantIsBroken retires nodes while the API server and the cloud answer
// late, with 429, 500 and 503, not at all although they have done what was asked, or half; while watches are dropped or
// lag, and what is read is old; and while others do to the same nodes what others do. A seed decides all of it.
//
// Each seed has a manager of its own in this process, with the rights of the shipped manifests, behind proxies that a
// judge looks through: what would break an invariant is found at the request that would.
func TestWhateverFailsEveryRetirementEndsAndNoInvariantIsBroken(t *testing.T) {
	t.Parallel()
	left := inOrder(*firstSeed, *seeds)
	left = left[:min(len(left), *realSeeds)]
	testbed.Note(t, fmt.Sprintf("retirement: %d schedules of faults on a control plane", len(left)))
	next := make(chan int, len(left))
	for _, seed := range left {
		next <- seed
	}
	close(next)
	var stages sync.WaitGroup
	for range stagesAtOnce {
		stages.Go(func() {
			for seed := range next {
				t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
					sc := sceneOf(uint64(seed))
					newMachines(t, fmt.Sprint("f", seed), sc.nodes).play(sc)
				})
			}
		})
	}
	stages.Wait()
}

// TestFaultSchedulesInVirtualTime plays all schedules on a cluster in memory. The manager, the faults and the judge are those of the
// control plane. What is not: authorization, admission, validation, and the tokens of ARM.
func TestFaultSchedulesInVirtualTime(t *testing.T) {
	testbed.OneThread(t)
	all := inOrder(*firstSeed, *seeds)
	testbed.Note(t, fmt.Sprintf("retirement: %d schedules of faults in virtual time", len(all)))
	for _, seed := range all {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sc := sceneOf(uint64(seed))
				inMemory(t).machines(t, fmt.Sprint("f", seed), sc.nodes).play(sc)
			})
		})
	}
}
