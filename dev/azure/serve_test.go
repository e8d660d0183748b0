package azure

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes/fake"

	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// startMain runs Main and returns the URLs that it prints, by description.
func startMain(ctx context.Context, t *testing.T, endpoints int, args ...string) (map[string]string, <-chan error) {
	t.Helper()
	out, in := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := RunEmulator(ctx, args, in, nil)
		_ = in.CloseWithError(io.EOF)
		done <- err
	}()
	urls := map[string]string{}
	lines := bufio.NewScanner(out)
	for len(urls) < endpoints && lines.Scan() {
		if m := regexp.MustCompile(`^(.*): (http://\S+)$`).FindStringSubmatch(lines.Text()); m != nil {
			urls[m[1]] = m[2]
		}
	}
	go func() { _, _ = io.Copy(io.Discard, out) }() // discards the log that follows
	if len(urls) < endpoints {
		t.Fatalf("Main ended early: %v", <-done)
	}
	return urls, done
}

func TestMainServesUntilContextEnds(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	urls, done := startMain(ctx, t, 2, "--listen=127.0.0.1:0", "--scale-set="+testSet, "--scale-set=other=127.0.0.1:0",
		"--notice=reboot=20s", "--outage=1h")
	everything, other := urls["everything, with the control API under /emulator/"], urls["scale set other"]

	var record EventRecord
	body := fmt.Sprintf(`{"type":"Reboot","resources":[%q]}`, vm0)
	if status := callControl(t, "POST", everything+"/emulator/events", body, &record); status != 200 {
		t.Fatalf("announce: %d", status)
	}
	if notice := record.NotBefore.Sub(record.VisibleAt); notice < 20*time.Second || notice > 21*time.Second {
		t.Errorf("the notice is %v, want that of the flag", notice)
	}
	if doc := readDocument(t, everything+"/scalesets/"+testSet); len(doc.Events) != 1 {
		t.Errorf("the scale set shows %+v", doc)
	}
	if doc := readDocument(t, other); len(doc.Events) != 0 {
		t.Errorf("the other scale set's own listener shows %+v", doc)
	}

	// A hanging request does not delay the end.
	if status := callControl(t, "POST", everything+"/emulator/faults", `{"kind":"hang"}`, nil); status != 200 {
		t.Fatalf("inject: %d", status)
	}
	hanging := make(chan error, 1)
	go func() {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, other+metadataPath+query, nil)
		if err == nil {
			err = sendIgnoringResponse(http.DefaultClient, r)
		}
		hanging <- err
	}()
	check.Is(t, 200, callControl(t, "GET", everything+"/emulator/state", "", nil))
	stop()
	if err := <-done; err != nil {
		t.Errorf("Main ended with %v", err)
	}
	if err := <-hanging; err == nil {
		t.Error("the hanging request got a response")
	}
}

func TestMainRefusesBadFlags(t *testing.T) {
	garbage := filepath.Join(t.TempDir(), "kubeconfig")
	must.NoError(t, os.WriteFile(garbage, []byte("{"), 0o600))
	for name, tt := range map[string]struct {
		args    []string
		message string
	}{
		"unknown flag":              {[]string{"--colour=red"}, "colour"},
		"an argument":               {[]string{"run"}, `"run"`},
		"address without a port":    {[]string{"--listen=127.0.0.1"}, "--listen"},
		"address for all":           {[]string{"--listen=:80"}, "loopback"},
		"address of the network":    {[]string{"--listen=192.0.2.1:80"}, "loopback"},
		"scale set without a name":  {[]string{"--scale-set="}, "scale-set"},
		"scale set with a path":     {[]string{"--scale-set=a/b"}, "scale-set"},
		"scale set for all":         {[]string{"--scale-set=a=0.0.0.0:0"}, "loopback"},
		"bad duration":              {[]string{"--outage=long"}, "outage"},
		"negative duration":         {[]string{"--first-call=-1s"}, "--first-call"},
		"notice without a type":     {[]string{"--notice=30s"}, "notice"},
		"notice of an unknown type": {[]string{"--notice=Explode=30s"}, "Explode"},
		"notice without a duration": {[]string{"--notice=Reboot"}, "notice"},
		"missing kubeconfig":        {[]string{"--kubeconfig=/nowhere/at/all"}, "/nowhere/at/all"},
		"kubeconfig unreadable":     {[]string{"--kubeconfig=" + garbage}, garbage},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			err := RunEmulator(ctx, append([]string{"--listen=127.0.0.1:0"}, tt.args...), io.Discard, nil)
			check.ErrorContains(t, err, tt.message)
		})
	}
}

func TestMainHelpListsFlags(t *testing.T) {
	var out bytes.Buffer
	if err := RunEmulator(t.Context(), []string{"--help"}, &out, nil); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("got %v", err)
	}
	for _, name := range []string{"listen", "kubeconfig", "scale-set", "notice", "outage", "linger", "first-call"} {
		if !strings.Contains(out.String(), "-"+name) {
			t.Errorf("the help does not mention --%s:\n%s", name, out.String())
		}
	}
}

func TestMainReportsTakenAddress(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	urls, done := startMain(ctx, t, 1, "--listen=127.0.0.1:0")
	taken := strings.TrimPrefix(urls["everything, with the control API under /emulator/"], "http://")
	if err := RunEmulator(t.Context(), []string{"--listen=127.0.0.1:0", "--scale-set=a=" + taken}, io.Discard, nil); err == nil ||
		!strings.Contains(err.Error(), "scale set a") {
		t.Errorf("got %v", err)
	}
	stop()
	if err := <-done; err != nil {
		t.Errorf("Main ended with %v", err)
	}
}

func TestClusterProvidesScaleSetsLedgerAndPower(t *testing.T) {
	s, err := parseFlags([]string{"--listen=127.0.0.1:0"}, io.Discard)
	must.NoError(t, err)
	client := fake.NewClientset(azureNode(node0, uniformProviderID(0)))
	must.NoError(t, s.watchNodesAndPods(t.Context(), client, newPowerRecorder()))
	if s.options.LedgerBuilder == nil || s.options.Machines == nil || len(s.scaleSets) != 1 ||
		!strings.EqualFold(s.scaleSets[0].name, testSet) {
		t.Errorf("got %+v", s)
	}
}
