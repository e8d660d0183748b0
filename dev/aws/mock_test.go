package aws_test

import (
	"context"
	"net"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	emulator "github.com/slipway-dev/slipway/dev/aws"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/notice/aws"
	"github.com/slipway-dev/slipway/internal/notice/poll"
)

// buildMock compiles AWS's own emulator of the metadata service. Its version is in mock/go.mod.
func buildMock(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "ec2-metadata-mock")
	args := slices.Concat([]string{"build", "-C", "mock"}, controlplane.BuildFlags,
		[]string{"-o", program, "github.com/aws/amazon-ec2-metadata-mock/cmd/ec2-metadata-mock"})
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Env = append(append(cmd.Environ(), "GOFLAGS=-mod=mod"), controlplane.BuildEnvironment...)
	if out, err := cmd.CombinedOutput(); err != nil {
		if strings.Contains(string(out), "proxy") || strings.Contains(string(out), "dial tcp") {
			t.Skipf("amazon-ec2-metadata-mock cannot be downloaded: %s", out)
		}
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

// TestAWSOwnEmulatorIsUnderstood also covers times that move with each request, which this emulator sends.
func TestAWSOwnEmulatorIsUnderstood(t *testing.T) {
	t.Parallel()
	program := buildMock(t)
	for name, tt := range map[string]struct {
		args []string
		want []notice.Type
	}{
		"spot":                    {[]string{"spot", "--action", "stop"}, []notice.Type{notice.Rebalance, notice.Preempt}},
		"event":                   {[]string{"events", "--code", "system-reboot"}, []notice.Type{notice.Reboot}},
		"event that is cancelled": {[]string{"events", "--code", "instance-stop", "--state", "canceled"}, nil},
		"group":                   {[]string{"asglifecycle"}, []notice.Type{notice.Terminate}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address, err := controlplane.ReserveFreeAddress(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			host, port, _ := net.SplitHostPort(address)
			ctx, stop := context.WithCancel(t.Context())
			cmd := exec.CommandContext(ctx, program, append(tt.args, "-I", "-n", host, "-p", port)...)
			cmd.Env = append(cmd.Environ(), "HOME="+t.TempDir())
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { stop(); _ = cmd.Wait() }) // it was killed
			client, err := aws.NewClient(aws.ClientOptions{Endpoint: "http://" + address})
			if err != nil {
				t.Fatal(err)
			}
			w := watch(t, startInstance(t), func(o *aws.SourceOptions) { o.Client = client })
			first := w.awaitTypes(tt.want...)
			end := time.Now().Add(2500 * time.Millisecond)
			w.await("polls for 2.5 s", func(notice.Snapshot, map[poll.Class]int) bool { return time.Now().After(end) })
			last := w.awaitTypes(tt.want...)
			for i, n := range last.Notices {
				if n.ID != first.Notices[i].ID || !n.NotBefore.Equal(first.Notices[i].NotBefore) {
					t.Errorf("%s at %s became %s at %s", first.Notices[i].ID, first.Notices[i].NotBefore, n.ID, n.NotBefore)
				}
			}
			if _, found, err := client.Get(t.Context(), emulator.HistoryPath); err != nil {
				t.Errorf("history: %t, %v", found, err)
			}
		})
	}
}
