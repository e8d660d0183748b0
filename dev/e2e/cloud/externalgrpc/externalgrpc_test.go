// Package externalgrpc_test tests the client of the cluster autoscaler's external gRPC protocol over mutual TLS. Its
// provider is an independent implementation.
package externalgrpc_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	server "github.com/slipway-dev/slipway/dev/externalgrpc"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cloud/conformance"
	"github.com/slipway-dev/slipway/internal/cloud/plugin/externalgrpc"
)

const group = "workers"

// testServer is a running provider server with its client configuration.
type testServer struct {
	*server.Server
	config externalgrpc.Config
}

func serve(t *testing.T, s *server.Server) *testServer {
	t.Helper()
	dir := t.TempDir()
	pool := authority(t, dir)
	cert, err := tls.LoadX509KeyPair(filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	web := httptest.NewUnstartedServer(s)
	web.EnableHTTP2 = true
	web.Config.ErrorLog = log.New(t.Output(), "", 0)
	web.TLS = &tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool,
	}
	web.StartTLS()
	t.Cleanup(web.Close)
	return &testServer{s, externalgrpc.Config{
		Name: "rack", Address: web.Listener.Addr().String(), ProviderIDPrefix: "rack://r1/",
		CAFile: filepath.Join(dir, "ca.pem"), CertFile: filepath.Join(dir, "cert.pem"), KeyFile: filepath.Join(dir, "key.pem"),
	}}
}

// authority writes a CA and a certificate for both sides.
func authority(t *testing.T, dir string) *x509.CertPool {
	t.Helper()
	var errs []error
	write := func(name, kind string, der []byte) {
		errs = append(errs, os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
	}
	template := func(serial int64, ca bool) *x509.Certificate {
		return &x509.Certificate{
			SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "test"}, IsCA: ca, BasicConstraintsValid: true,
			NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
			KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		}
	}
	caKey, err1 := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	key, err2 := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	ca, leaf := template(1, true), template(2, false)
	caDER, err1 := x509.CreateCertificate(rand.Reader, ca, ca, caKey.Public(), caKey)
	leafDER, err2 := x509.CreateCertificate(rand.Reader, leaf, ca, key.Public(), caKey)
	keyDER, err3 := x509.MarshalECPrivateKey(key)
	errs = append(errs, err1, err2, err3)
	write("ca.pem", "CERTIFICATE", caDER)
	write("cert.pem", "CERTIFICATE", leafDER)
	write("key.pem", "EC PRIVATE KEY", keyDER)
	pool := x509.NewCertPool()
	root, err := x509.ParseCertificate(caDER)
	if err := errors.Join(append(errs, err)...); err != nil {
		t.Fatal(err)
	}
	pool.AddCert(root)
	return pool
}

func newTestServer(t *testing.T) *testServer {
	return serve(t, server.New(server.Group{ID: group, Max: 20}, conformance.MinInstances))
}

func provider(t *testing.T, c externalgrpc.Config) *externalgrpc.Provider {
	t.Helper()
	p, err := externalgrpc.New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

func (r *testServer) Provider(t *testing.T) cloud.Provider { return provider(t, r.config) }
func (*testServer) Group() string                          { return group }
func (r *testServer) GroupSize() int                       { return r.TargetSize(group) }
func (*testServer) MissingID() string                      { return "rack://r1/workers/never-was" }
func (*testServer) ForeignID() string                      { return "rack://r2/workers/workers-1" }
func (r *testServer) LoseInstance(_ *testing.T, id string) { r.Server.RemoveMachine(id) }
func (r *testServer) ClearFaults(*testing.T)               { r.Server.ClearFaults() }
func (r *testServer) DeletionRequests() int                { return r.CountRequests("NodeGroupDeleteNodes") }

func (r *testServer) AwaitGone(t *testing.T, id string) {
	t.Helper()
	for slices.Contains(r.ProviderIDs(), id) {
		select {
		case <-time.After(time.Millisecond):
		case <-t.Context().Done():
			t.Fatal("the machine is still there")
		}
	}
}

func (r *testServer) InjectFault(t *testing.T, f conformance.Fault) {
	t.Helper()
	always := func(answer func(w http.ResponseWriter)) {
		r.SetFaults(server.Faults{BeforeCall: func(w http.ResponseWriter, _ string) bool {
			answer(w)
			return true
		}})
	}
	page := func(status int) {
		always(func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "text/html")
			w.WriteHeader(status)
			_, _ = w.Write([]byte("<html>It works!</html>"))
		})
	}
	switch f.FaultKind {
	case conformance.Unavailable:
		always(func(w http.ResponseWriter) { server.WriteResponse(w, nil, server.Unavailable, "maintenance") })
	case conformance.ConnectionReset:
		always(func(http.ResponseWriter) { panic(http.ErrAbortHandler) })
	case conformance.TruncatedResponse:
		always(func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/grpc")
			_, _ = w.Write([]byte{0, 0, 0, 1, 0, 10, 20})
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		})
	case conformance.ProxyPage:
		page(http.StatusOK)
	case conformance.ProxyNotFound:
		page(http.StatusNotFound)
	case conformance.PermissionDenied:
		always(func(w http.ResponseWriter) { server.WriteResponse(w, nil, server.PermissionDenied, "you may not") })
	case conformance.Throttled:
		always(func(w http.ResponseWriter) { server.WriteThrottled(w, f.RetryAfter) })
	case conformance.DeletionHangs:
		r.HangDeletion(f.ProviderID)
	case conformance.DeletionFails:
		r.FailDeletion(f.ProviderID)
	case conformance.QuotaExhausted:
		r.SetFaults(server.Faults{Quota: conformance.MinInstances})
	case conformance.StaleLists: // this is normal behavior: only Refresh renews the lists
	default:
		t.Fatalf("unsupported fault: %s", f.FaultKind)
	}
}

// UnsupportedFaults implements conformance.Limited.
func (*testServer) UnsupportedFaults() map[conformance.FaultKind]string {
	return map[conformance.FaultKind]string{
		conformance.ListFailsMidway:   "the protocol has no pages",
		conformance.ForgetsOperations: "the protocol has no operations",
	}
}

func TestExternalGRPCPassesConformance(t *testing.T) {
	t.Parallel()
	conformance.RunParallel(t, func(t *testing.T) conformance.Cloud { return newTestServer(t) })
}

func TestI7NotFoundStatusIsNotTrusted(t *testing.T) {
	t.Parallel()
	r := newTestServer(t)
	p := provider(t, r.config)
	for _, method := range []string{"Refresh", "NodeGroups", "NodeGroupTargetSize", "NodeGroupNodes", "NodeGroupDeleteNodes"} {
		r.SetFaults(server.Faults{BeforeCall: func(w http.ResponseWriter, asked string) bool {
			if asked == method {
				server.WriteResponse(w, nil, server.NotFound, "no such object")
			}
			return asked == method
		}})
		if _, err := p.Delete(t.Context(), r.ProviderIDs()[0]); err == nil || cloud.IsNotFound(err) {
			t.Errorf("I7: %s says NOT_FOUND, Delete: %v", method, err)
		}
	}
}

func TestLostDeletionResponseIsNotRepeated(t *testing.T) {
	t.Parallel()
	answers := map[string]func(w http.ResponseWriter){
		"stream reset":    func(http.ResponseWriter) { panic(http.ErrAbortHandler) },
		"gateway timeout": func(w http.ResponseWriter) { w.WriteHeader(http.StatusGatewayTimeout) },
		"error after the size was lowered": func(w http.ResponseWriter) {
			server.WriteResponse(w, nil, server.Unknown, "disk failure")
		},
	}
	for name, answer := range answers {
		for _, late := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, late %t", name, late), func(t *testing.T) {
				r := newTestServer(t)
				p := provider(t, r.config)
				machine := r.ProviderIDs()[0]
				r.SetFaults(server.Faults{KeepDeletedListed: late, AfterCall: func(w http.ResponseWriter, method string) bool {
					if method != "NodeGroupDeleteNodes" {
						return false
					}
					answer(w)
					return true
				}})
				var op cloud.Operation
				for range 2 {
					var err error
					if op, err = p.Delete(t.Context(), machine); err != nil && !cloud.IsNotFound(err) {
						t.Errorf("Delete: %v", err)
					}
				}
				if n, size := r.CountRequests("NodeGroupDeleteNodes"), r.TargetSize(group); n != 1 || size != conformance.MinInstances-1 {
					t.Errorf("%d deletion requests, and a size of %d; want 1 and %d", n, size, conformance.MinInstances-1)
				}
				if s, err := p.Status(t.Context(), op); late && (err != nil || s.Done) {
					t.Errorf("the machine still runs, and its deletion is %+v, %v", s, err)
				}
			})
		}
	}
}

func TestRefusedDeletionIsRetried(t *testing.T) {
	t.Parallel()
	for name, code := range map[string]int{
		"unknown": server.Unknown, "not found": server.NotFound, "denied": server.PermissionDenied, "invalid": server.InvalidArgument,
	} {
		t.Run(name, func(t *testing.T) {
			r := newTestServer(t)
			p := provider(t, r.config)
			refusals := 1
			r.SetFaults(server.Faults{BeforeCall: func(w http.ResponseWriter, method string) bool {
				if method != "NodeGroupDeleteNodes" || refusals == 0 {
					return false
				}
				refusals--
				server.WriteResponse(w, nil, code, "not now")
				return true
			}})
			if _, err := p.Delete(t.Context(), r.ProviderIDs()[0]); err == nil || !strings.Contains(err.Error(), "not now") {
				t.Errorf("Delete: %v, want the message of the provider", err)
			}
			if _, err := p.Delete(t.Context(), r.ProviderIDs()[0]); err != nil || r.TargetSize(group) != conformance.MinInstances-1 {
				t.Errorf("second Delete: %v, and the size is %d of %d", err, r.TargetSize(group), conformance.MinInstances)
			}
		})
	}
}

func TestGroupLimitsAreKept(t *testing.T) {
	t.Parallel()
	r := serve(t, server.New(server.Group{ID: group, Min: 2, Max: 3}, 2))
	p := provider(t, r.config)
	if _, err := p.Delete(t.Context(), r.ProviderIDs()[0]); cloud.RefusalOf(err) != cloud.AtLimit {
		t.Errorf("Delete at the minimum: %v, want the refusal %s", err, cloud.AtLimit)
	}
	if _, err := p.Grow(t.Context(), group, cloud.LaunchRequest{Count: 2}); cloud.RefusalOf(err) != cloud.AtLimit {
		t.Errorf("Grow beyond the maximum: %v, want the refusal %s", err, cloud.AtLimit)
	}
	if r.TargetSize(group) != 2 {
		t.Errorf("the size is %d", r.TargetSize(group))
	}
}

func TestConcurrentReadsShareOneRefresh(t *testing.T) {
	t.Parallel()
	r := newTestServer(t)
	p := provider(t, r.config)
	machine := r.ProviderIDs()[0]
	first := make(chan struct{})
	var once sync.Once
	release := make(chan struct{})
	r.SetFaults(server.Faults{BeforeCall: func(_ http.ResponseWriter, method string) bool {
		if method == "Refresh" {
			once.Do(func() {
				close(first)
				<-release
			})
		}
		return false
	}})
	var all sync.WaitGroup
	ask := func() {
		all.Go(func() {
			if _, err := p.Instance(t.Context(), machine); err != nil {
				t.Error(err)
			}
		})
	}
	ask()
	<-first
	for range 100 {
		ask()
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Instance(ctx, machine); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled caller: %v", err)
	}
	close(release)
	all.Wait()
	if n := r.CountRequests("Refresh"); n < 2 || n > 10 { // late callers on a slow host may have needed another
		t.Errorf("101 calls caused %d refreshes", n)
	}
}

func TestTemplatesAreRead(t *testing.T) {
	t.Parallel()
	node := corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"group": group, corev1.LabelTopologyZone: "r1"}},
		Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: "k", Value: "v", Effect: corev1.TaintEffectNoSchedule}}},
		Status:     corev1.NodeStatus{Capacity: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4")}},
	}
	raw, err := node.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	full := cloud.Template{Name: group, Zone: "r1", NodeShape: cloud.NodeShape{
		Capacity: node.Status.Capacity, Labels: node.Labels, Taints: node.Spec.Taints,
	}}
	priced := full
	priced.Cost = 2.5
	for name, test := range map[string]struct {
		group server.Group
		want  cloud.Template
	}{
		"none":         {server.Group{}, cloud.Template{Name: group}},
		"new format":   {server.Group{Node: raw}, full},
		"old format":   {server.Group{Node: raw, OldNodeFormat: true}, full},
		"with a price": {server.Group{Node: raw, Price: 2.5}, priced},
	} {
		t.Run(name, func(t *testing.T) {
			test.group.ID, test.group.Max = group, 20
			p := provider(t, serve(t, server.New(test.group, 1)).config)
			got, err := p.Templates(t.Context(), group)
			if diff := cmp.Diff([]cloud.Template{test.want}, got); diff != "" || err != nil {
				t.Errorf("%v\n%s", err, diff)
			}
		})
	}
}

func TestBothSidesRequireCertificates(t *testing.T) {
	t.Parallel()
	r, other := newTestServer(t), newTestServer(t)
	stranger := r.config
	stranger.CertFile, stranger.KeyFile = other.config.CertFile, other.config.KeyFile
	impostor := r.config
	impostor.CAFile = other.config.CAFile
	for name, c := range map[string]externalgrpc.Config{"a client of another CA": stranger, "a server of another CA": impostor} {
		if g, err := provider(t, c).Group(t.Context(), group); err == nil || cloud.IsNotFound(err) {
			t.Errorf("%s: Group = %+v, %v", name, g, err)
		}
	}
	if r.CountRequests("Refresh") != 0 {
		t.Error("the provider received a request")
	}
}

func TestI10InvalidConfigIsRefused(t *testing.T) {
	t.Parallel()
	good := newTestServer(t).config
	for want, change := range map[string]func(*externalgrpc.Config){
		"name: \"Rack\"":         func(c *externalgrpc.Config) { c.Name = "Rack" },
		"address: \"rack\"":      func(c *externalgrpc.Config) { c.Address = "rack" },
		"providerIDPrefix: \"\"": func(c *externalgrpc.Config) { c.ProviderIDPrefix = "" },
		"want all three":         func(c *externalgrpc.Config) { c.KeyFile = "" },
		"want one or the other":  func(c *externalgrpc.Config) { c.Insecure = true },
		"is not local": func(c *externalgrpc.Config) {
			*c = externalgrpc.Config{Name: "a", Address: "10.0.0.1:1", ProviderIDPrefix: "a://", Insecure: true}
		},
		"callTimeout: 1ms":         func(c *externalgrpc.Config) { c.CallTimeout.Duration = time.Millisecond },
		"want certificates in PEM": func(c *externalgrpc.Config) { c.CAFile = c.KeyFile },
		"caFile: open /none":       func(c *externalgrpc.Config) { c.CAFile = "/none" },
		"certFile, keyFile: open ": func(c *externalgrpc.Config) { c.KeyFile = "/none" },
	} {
		c := good
		change(&c)
		if _, err := externalgrpc.New(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
}
