// Package metadata runs the metadata services of emulated Spot machines for benchmarks, and counts their requests.
package metadata

import (
	"fmt"
	"hash/fnv"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"time"

	"github.com/slipway-dev/slipway/dev/aws"
	"github.com/slipway-dev/slipway/dev/gcp"
)

// Server serves the metadata of one machine on a loopback address.
type Server struct {
	http     *httptest.Server
	requests atomic.Int64
}

// NewServer starts a server that counts the requests to a handler.
func NewServer(handler http.Handler) *Server {
	s := &Server{}
	s.http = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.requests.Add(1)
		handler.ServeHTTP(w, r)
	}))
	return s
}

// URL returns the URL of the server, without a path.
func (s *Server) URL() string { return s.http.URL }

// Requests returns the number of requests so far.
func (s *Server) Requests() int { return int(s.requests.Load()) }

// Close ends all connections and the server.
func (s *Server) Close() {
	s.http.CloseClientConnections()
	s.http.Close()
}

// Machine is a Spot machine of a cloud with its metadata service.
type Machine struct {
	*Server

	// Endpoint is the URL that the agent reads.
	Endpoint string

	announce, withdraw func()
	closeEmulator      func()
}

// Announce shows a Spot notice, and returns when it became visible.
func (m *Machine) Announce() (visibleAt time.Time) {
	visibleAt = time.Now()
	m.announce()
	return visibleAt
}

// Withdraw removes the notice.
func (m *Machine) Withdraw() { m.withdraw() }

// Close ends the metadata service.
func (m *Machine) Close() {
	m.closeEmulator()
	m.Server.Close()
}

// Cloud makes the machines of nodes.
type Cloud struct {
	Name string
	// Service describes the metadata service for the conditions of a result.
	Service string
	// ProviderID returns spec.providerID of a node.
	ProviderID func(node string) string
	// Start starts the metadata service of a node's machine. The caller must close it.
	Start func(node string) *Machine
}

// spotNotice is how long before the interruption of a Spot instance EC2 shows the notice.
const spotNotice = 2 * time.Minute

// EC2 is AWS. Its Spot notices have two minutes.
var EC2 = Cloud{
	Name: "AWS", Service: "emulated EC2 instance metadata",
	ProviderID: func(node string) string { return "aws:///eu-west-1a/" + instanceID(node) },
	Start: func(node string) *Machine {
		instance := aws.StartInstance(instanceID(node))
		server := NewServer(instance)
		return &Machine{
			Server: server, Endpoint: server.URL(), closeEmulator: instance.Close,
			announce: func() { instance.SetSpotAction("terminate", time.Now().Add(spotNotice)) },
			withdraw: func() { instance.Set(aws.SpotPath, "") },
		}
	},
}

func instanceID(node string) string {
	sum := fnv.New64a()
	_, _ = sum.Write([]byte(node)) // it never fails
	return fmt.Sprintf("i-%017x", sum.Sum64())
}

// ComputeEngine is Google. Its Spot notices have 30 s.
var ComputeEngine = Cloud{
	Name: "Google", Service: "emulated Compute Engine metadata",
	ProviderID: func(node string) string { return "gce://project-1/europe-west4-a/" + node },
	Start: func(node string) *Machine {
		emulator := gcp.New(gcp.Options{})
		emulator.AddVM(node)
		emulator.SetNoUpcoming(node) // as for most VMs
		server := NewServer(emulator.Handler())
		return &Machine{
			Server: server, Endpoint: gcp.URL(server.URL(), node), closeEmulator: emulator.Close,
			announce: func() { emulator.Preempt(node) },
			withdraw: func() { emulator.CancelPreemption(node) },
		}
	},
}
