package sharedread

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// ask answers with the number of its call, after a minute.
func ask(asked *int) func(context.Context) (int, error) {
	return func(context.Context) (int, error) {
		*asked++
		n := *asked
		time.Sleep(time.Minute)
		return n, nil
	}
}

func TestWaitingCallersShareTheNextRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r Reader[int]
		var asked int
		var all sync.WaitGroup
		for i := range 10 {
			all.Go(func() {
				time.Sleep(time.Duration(i) * time.Second)
				got, err := r.Read(t.Context(), ask(&asked))
				if want := min(i, 1) + 1; err != nil || got != want {
					t.Errorf("caller %d got answer %d, %v; want %d", i, got, err, want)
				}
			})
		}
		all.Wait()
	})
}

func TestCallerStopsWaitingWhenItsContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r Reader[int]
		var asked int
		go func() { _, _ = r.Read(t.Context(), ask(&asked)) }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := r.Read(ctx, ask(&asked)); !errors.Is(err, context.DeadlineExceeded) || asked != 1 {
			t.Errorf("%v after %d questions, want the deadline after one", err, asked)
		}
		time.Sleep(time.Minute)
	})
}

func TestAnswerIsReusedOnlyWithinItsInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const holds = 5 * time.Second
		r := Reader[int]{ReuseFor: holds}
		reads := 0
		var fail error
		read := func() error {
			_, err := r.Read(t.Context(), func(context.Context) (int, error) {
				reads++
				time.Sleep(time.Second)
				return 0, fail
			})
			return err
		}
		check := func(want int) {
			t.Helper()
			if reads != want {
				t.Errorf("%d reads, want %d", reads, want)
			}
		}
		_ = read()
		time.Sleep(holds - 2*time.Second)
		_ = read()
		check(1)
		time.Sleep(2 * time.Second)
		_ = read()
		check(2)
		r.Outdate()
		_ = read()
		check(3)
		time.Sleep(holds)
		go func() { time.Sleep(500 * time.Millisecond); r.Outdate() }()
		_ = read() // it began before the change
		_ = read()
		check(5)

		// Callers that wait for a read share its failure, and the next one asks again.
		time.Sleep(holds)
		fail = errors.New("no")
		var all sync.WaitGroup
		for range 5 {
			all.Go(func() {
				if err := read(); !errors.Is(err, fail) {
					t.Errorf("%v, want the failure", err)
				}
			})
		}
		all.Wait()
		check(6)
		fail = nil
		if err := read(); err != nil {
			t.Errorf("%v after the failure has passed", err)
		}
		check(7)
	})
}

func TestCancelledCallerFailsNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := Reader[int]{ReuseFor: time.Hour}
		read := func(ctx context.Context) (int, error) {
			select {
			case <-ctx.Done():
				return 0, ctx.Err()
			case <-time.After(10 * time.Second):
				return 1, nil
			}
		}
		var all sync.WaitGroup
		for _, patience := range []time.Duration{time.Second, time.Minute} {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			all.Go(func() {
				got, err := r.Read(ctx, read)
				if gave := patience < 10*time.Second; (err != nil) != gave || (got == 0) != gave {
					t.Errorf("with %s: %v, %v", patience, got, err)
				}
			})
			synctest.Wait()
		}
		all.Wait()
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := r.Read(ended, read); err == nil {
			t.Error("a caller whose context has ended is answered")
		}
	})
}
