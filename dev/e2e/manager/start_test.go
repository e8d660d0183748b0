package manager_test

import (
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/slipway-dev/slipway/dev/faultproxy"
	"github.com/slipway-dev/slipway/dev/testbed"
)

// TestFirstManagerOfAClusterStarts starts the first manager of a cluster. The API server does not
// answer at first, and the types are missing. The manager may not install them.
func TestFirstManagerOfAClusterStarts(t *testing.T) {
	t.Parallel()
	b := on(t, testbed.StartForTest(t, testbed.Options{}))
	b.deploy("namespace.yaml", "rbac.yaml", "admission.yaml")
	if !t.Run("waits for the API server and the types", b.waitsForAPIServer) {
		return
	}
	if !t.Run("names the missing permission", b.namesMissingPermission) {
		return
	}
	b.deploy("install-crds.yaml")
	if !t.Run("installs and upgrades the types", b.installsAndUpgrades) {
		return
	}
	t.Run("keeps newer types", b.keepsNewer)
	t.Run("keeps types upgraded during the start", b.keepsUpgraded)
	t.Run("keeps types installed during the start", b.keepsInstalled)
}

// waitsForAPIServer starts a manager before an API server that first answers 503, then does not answer, and then works.
func (b bed) waitsForAPIServer(t *testing.T) {
	b.t = t
	var mode atomic.Pointer[faultproxy.Fault]
	mode.Store(&faultproxy.Fault{Status: http.StatusServiceUnavailable})
	proxy := faultproxy.New(func(r faultproxy.Request) string { return r.Method + " " + r.Path })
	proxy.SetFaults(func(faultproxy.Request) faultproxy.Fault { return *mode.Load() })
	p := b.start("waits", "--kubeconfig", b.through(proxy), "--leader-elect=false")
	unready := func(words string) func(int, string) bool {
		return func(status int, body string) bool {
			return status == http.StatusServiceUnavailable && strings.Contains(body, words)
		}
	}
	p.await("/readyz", "reports the 503", unready("checking the API server"))
	p.await("/healthz", "is good", func(status int, _ string) bool { return status == http.StatusOK })
	asked := len(proxy.Requests())
	mode.Store(&faultproxy.Fault{Delay: testbed.TestTimeout})
	b.check(testbed.PollUntil(b.ctx, "the manager retries", func() bool { return len(proxy.Requests()) > asked }))
	mode.Store(&faultproxy.Fault{})
	p.await("/readyz", "reports the types", unready("--install-crds"))
	if !strings.Contains(p.log(), "cannot start yet, will retry") {
		t.Errorf("the log does not report the retry:\n%s", p.log())
	}
	if err := p.Kill(); err != nil {
		t.Error(err)
	}
}

// namesMissingPermission starts a manager with --install-crds that lacks the permission to install the types.
func (b bed) namesMissingPermission(t *testing.T) {
	b.t = t
	said := b.start("lacks", "--kubeconfig", b.credentials(), "--leader-elect=false", "--install-crds").ended()
	for _, part := range []string{
		`cannot get resource \"customresourcedefinitions\" in API group \"apiextensions.k8s.io\"`, "deploy/manager/install-crds.yaml",
	} {
		if !strings.Contains(said, part) && !strings.Contains(said, strings.ReplaceAll(part, `\"`, `"`)) {
			t.Errorf("the output lacks %s:\n%s", part, said)
		}
	}
	if names := b.definitions(); len(names) > 0 {
		t.Errorf("I10: the definitions %v are installed", names)
	}
}

// TestManagerStopsWhileWaitingForAPIServer covers a manager that waits for an API server.
func TestManagerStopsWhileWaitingForAPIServer(t *testing.T) {
	t.Parallel()
	b := ready(t)
	proxy := faultproxy.New(func(r faultproxy.Request) string { return r.Path })
	proxy.SetFaults(func(faultproxy.Request) faultproxy.Fault {
		return faultproxy.Fault{Status: http.StatusServiceUnavailable}
	})
	p := b.start("stops", "--kubeconfig", b.through(proxy), "--leader-elect=false")
	p.await("/readyz", "is not good", func(status int, _ string) bool { return status == http.StatusServiceUnavailable })
	running, err := os.FindProcess(p.PID())
	b.check(err)
	b.check(running.Signal(os.Interrupt))
	if said := p.ended(); strings.Contains(said, "panic") {
		t.Error(said)
	}
}
