package retirement_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var (
	seeds     = flag.Int("faults.seeds", number("SLIPWAY_FAULT_SEEDS", 500), "how many schedules of faults to run")
	firstSeed = flag.Int("faults.first", 1, "the first of them")
	beginFor  = flag.Duration("faults.for", spare(time.Now()), "after what time no more are begun, but for the first few")
)

const (
	// leastSeeds are run however long it takes: a slow or busy machine runs fewer than a quiet one, but not none.
	leastSeeds = 48
	// leastSpare and mostSpare bound the time that schedules get, the latter because a package has no more than half an
	// hour. wholeTests after the beginning of `make test` none are begun any more.
	leastSpare = 2 * time.Minute
	mostSpare  = 15 * time.Minute
	wholeTests = 29 * time.Minute
)

// spare is how long schedules may be begun, from now. `make test` says when it began.
func spare(now time.Time) time.Duration {
	began := number("SLIPWAY_TEST_BEGAN", 0)
	if began == 0 {
		return leastSpare
	}
	return min(max(leastSpare, time.Unix(int64(began), 0).Add(wholeTests).Sub(now)), mostSpare)
}

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

// note says something to whoever reads the summary of `make test`, which does not show what tests log that pass.
func note(t *testing.T, said string) {
	t.Helper()
	t.Log(said)
	path := os.Getenv("SLIPWAY_TEST_NOTES")
	if path == "" {
		return
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = fmt.Fprintln(f, said)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		t.Error(err)
	}
}

// failedOnce are seeds that have failed and are mended: they come first, so that they are run however little time there is.
var failedOnce = []int{
	421, // a machine that somebody took away was counted as one more that leaves
	151, // the machine was lost between two looks at the end of a retirement that had been given up early
	199, // the node of a retirement that was called off kept its conditions for minutes, as they could not be written once
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
	var began time.Time
	var once sync.Once
	var played atomic.Int32
	t.Cleanup(func() {
		note(t, fmt.Sprintf("retirement: %d of %d schedules of faults were run", played.Load(), *seeds))
	})
	for place, seed := range inOrder(*firstSeed, *seeds) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			once.Do(func() { began = time.Now() })
			if time.Since(began) > *beginFor && place >= leastSeeds {
				t.Skipf("after %s no more are begun", *beginFor)
			}
			played.Add(1)
			play(t, sceneOf(uint64(seed)), fmt.Sprint("f", seed))
		})
	}
}
