// Package queue measures the AWS queue mode: messages lost and nodes drained twice, in a long course of messages with
// faults and kills. The course is a test in virtual time, and this package runs it with more messages.
package queue

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/slipway-dev/slipway/dev/bench/result"
	"github.com/slipway-dev/slipway/dev/testbed"
)

// Messages is the number of messages of the course.
const Messages = 10_000

// courseResult has the fields of the test's result that are reported.
type courseResult struct {
	Messages, Deliveries, Instances, Kills, Refused int
	LostNodes, LostMessages, LostHooks              int
	DoubleEvictions, DoubleDrains, EarlyHooks       int
	Hours                                           float64
}

// RunBenchmarks runs the course, which takes some minutes.
func RunBenchmarks(ctx context.Context, progress io.Writer) ([]result.Result, error) {
	root, err := testbed.RepositoryRoot()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "slipway-queue-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }() // temporary
	file := filepath.Join(dir, "result.json")
	cmd := exec.CommandContext(ctx, "go", "test", "-trimpath", "-gcflags=all=-dwarf=false", "-vet=off", "-count=1", "-timeout=60m", "-run=^TestNoMessageIsLostAndNoNodeDrainedTwice$", "./e2e/queue")
	cmd.Dir, cmd.Stdout, cmd.Stderr = filepath.Join(root, "dev"), progress, progress
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", fmt.Sprintf("SLIPWAY_QUEUE_MESSAGES=%d", Messages), "SLIPWAY_QUEUE_RESULT="+file)
	testErr := cmd.Run() // a missed target fails the test too
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("the course has no result: %w", testErr)
	}
	var r courseResult
	if err := json.Unmarshal(raw, &r); err != nil {
		return nil, err
	}
	setup := fmt.Sprintf("%d messages of all forms, delivered %d times and out of order, for %d instances in %.1f h of virtual time; "+
		"the process was killed %d times, and %d requests to AWS were refused", r.Messages, r.Deliveries, r.Instances, r.Hours, r.Kills, r.Refused)
	zero := result.AtMost(0)
	return []result.Result{
		{Name: "nodes not drained in time", Value: float64(r.LostNodes), Target: zero, Setup: setup},
		{Name: "messages lost", Value: float64(r.LostMessages), Target: zero, Setup: setup},
		{Name: "lifecycle hooks not completed", Value: float64(r.LostHooks), Target: zero, Setup: setup},
		{Name: "lifecycle hooks completed before the last pod ended", Value: float64(r.EarlyHooks), Target: zero, Setup: setup},
		{Name: "nodes drained twice", Value: float64(r.DoubleDrains), Target: zero, Setup: setup},
		{Name: "pods evicted twice", Value: float64(r.DoubleEvictions), Target: zero, Setup: setup},
	}, nil
}
