// Package externalgrpc is a server for the cluster autoscaler's external gRPC cloud provider protocol, with machines in
// memory. It shares no code with Slipway's client and uses neither generated code nor gRPC. It repeats the field numbers
// of the protocol's definition, and writes frames and trailers itself.
//
// It does everything unexpected that the protocol allows. It lists machines from a cache that only Refresh renews. It
// lowers a group's size at each deletion request. It returns NOT_FOUND for machines that it has merely forgotten.
package externalgrpc

import (
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
)

const Service = "/clusterautoscaler.cloudprovider.v1.externalgrpc.CloudProvider/"

// The gRPC status codes of the server.
const (
	OK                = 0
	Unknown           = 2
	InvalidArgument   = 3
	NotFound          = 5
	PermissionDenied  = 7
	ResourceExhausted = 8
	Unimplemented     = 12
	Unavailable       = 14
)

// The numbers that the protocol uses for the states of a machine.
const (
	running  = 1
	creating = 2
	deleting = 3
)

// Machine is one machine of the emulated cloud.
type Machine struct {
	ID            string
	state         uint64
	deletionError string // reason for the failed deletion
}

// Group is a node group of the emulated cloud. Target is the requested number of machines.
type Group struct {
	ID       string
	Min, Max int
	Target   int
	// Node is the template's Node in protobuf. Nil returns Unimplemented.
	Node []byte
	// OldNodeFormat sends Node as providers for older cluster autoscalers do.
	OldNodeFormat bool
	// Price is the price per hour.
	Price float64
}

// Server is an emulated cloud provider. Its methods may be called concurrently.
type Server struct {
	mu           sync.Mutex
	groups       map[string]*Group
	machines     map[string][]*Machine // by group
	cache        map[string][]Machine
	machineCount int
	faults       Faults
	hangs        map[string]bool // machines with hanging deletion
	fails        map[string]bool
	requests     map[string]int // by method
}

// Faults configures how the Server misbehaves.
type Faults struct {
	// BeforeCall, if set, is called before each call. It reports whether it has responded instead of the provider.
	BeforeCall func(w http.ResponseWriter, method string) bool
	// AfterCall, if set, is called after a call took effect. It reports whether it has responded instead of the provider.
	AfterCall func(w http.ResponseWriter, method string) bool
	// KeepDeletedListed lists machines as running forever after their deletion was accepted.
	KeepDeletedListed bool
	// Quota is the maximum number of machines, if not 0.
	Quota int
}

// New returns a Server with one group of n running machines.
func New(g Group, n int) *Server {
	s := &Server{
		groups: map[string]*Group{}, machines: map[string][]*Machine{}, requests: map[string]int{},
		hangs: map[string]bool{}, fails: map[string]bool{},
	}
	g.Target = n
	s.groups[g.ID] = &g
	for range n {
		s.addMachine(g.ID).state = running
	}
	s.refreshCache()
	return s
}

func (s *Server) addMachine(group string) *Machine {
	s.machineCount++
	m := &Machine{ID: fmt.Sprintf("rack://r1/%s/%s-%d", group, group, s.machineCount), state: creating}
	s.machines[group] = append(s.machines[group], m)
	return m
}

// bootOrEndMachines moves each machine to its next state. A machine in creation starts to run. A machine in deletion
// is removed, unless its deletion fails or hangs.
func (s *Server) bootOrEndMachines() {
	for group := range s.machines {
		s.machines[group] = slices.DeleteFunc(s.machines[group], func(m *Machine) bool {
			switch {
			case m.state == creating:
				m.state = running
			case m.state == deleting && s.fails[m.ID]:
				m.state, m.deletionError = running, "its disk is in use"
				s.groups[group].Target++
			case m.state == deleting && !s.hangs[m.ID]:
				return true
			}
			return false
		})
	}
}

func (s *Server) refreshCache() {
	s.cache = map[string][]Machine{}
	for group, list := range s.machines {
		for _, m := range list {
			s.cache[group] = append(s.cache[group], *m)
		}
	}
}

// ProviderIDs returns the IDs of the machines, sorted.
func (s *Server) ProviderIDs() (ids []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bootOrEndMachines()
	for _, list := range s.machines {
		for _, m := range list {
			ids = append(ids, m.ID)
		}
	}
	slices.Sort(ids)
	return ids
}

// TargetSize returns the requested number of machines of a group.
func (s *Server) TargetSize(group string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.groups[group].Target
}

// CountRequests returns how many requests of a method arrived, failed ones too. A method is named without its service,
// such as "Refresh".
func (s *Server) CountRequests(method string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests[method]
}

// RemoveMachine removes a machine without a request, as a failure in the cloud does.
func (s *Server) RemoveMachine(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for group := range s.machines {
		s.machines[group] = slices.DeleteFunc(s.machines[group], func(m *Machine) bool { return m.ID == id })
	}
}

// HangDeletion makes the deletion of a machine hang.
func (s *Server) HangDeletion(id string) { s.changeLocked(func() { s.hangs[id] = true }) }

// FailDeletion makes the deletion of a machine fail.
func (s *Server) FailDeletion(id string) { s.changeLocked(func() { s.fails[id] = true }) }

// SetFaults replaces the faults of the Server.
func (s *Server) SetFaults(f Faults) { s.changeLocked(func() { s.faults = f }) }

// ClearFaults removes the faults of SetFaults, HangDeletion and FailDeletion.
func (s *Server) ClearFaults() {
	s.changeLocked(func() {
		s.faults = Faults{}
		clear(s.hangs)
		clear(s.fails)
	})
}

func (s *Server) changeLocked(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// ServeHTTP serves gRPC calls over HTTP/2 without a gRPC library.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	method, ok := strings.CutPrefix(r.URL.Path, Service)
	if !ok || r.ProtoMajor != 2 || r.Header.Get("Content-Type") != "application/grpc" {
		http.NotFound(w, r)
		return
	}
	frame, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err != nil || len(frame) < 5 || frame[0] != 0 || int(binary.BigEndian.Uint32(frame[1:])) != len(frame)-5 {
		WriteResponse(w, nil, InvalidArgument, "invalid frame")
		return
	}
	request, err := parseFields(frame[5:])
	if err != nil {
		WriteResponse(w, nil, InvalidArgument, err.Error())
		return
	}
	s.mu.Lock()
	s.requests[method]++
	handle := s.faults.BeforeCall
	s.mu.Unlock()
	if handle != nil && handle(w, method) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bootOrEndMachines()
	answer, code, message := s.runCallLocked(method, request)
	if s.faults.AfterCall != nil && s.faults.AfterCall(w, method) {
		return
	}
	WriteResponse(w, answer, code, message)
}

// WriteResponse writes the response message of a call, and the trailers with its status.
func WriteResponse(w http.ResponseWriter, message []byte, code int, text string) {
	w.Header().Set("Content-Type", "application/grpc")
	if code == OK {
		head := make([]byte, 5)
		binary.BigEndian.PutUint32(head[1:], uint32(len(message)))
		_, _ = w.Write(append(head, message...)) //nolint:gosec // no browser reads application/grpc
	}
	w.Header().Set(http.TrailerPrefix+"Grpc-Status", fmt.Sprint(code))
	w.Header().Set(http.TrailerPrefix+"Grpc-Message", text)
}

// runCallLocked runs a call and returns its response message or its status code and error text. The caller holds the
// mutex.
func (s *Server) runCallLocked(method string, r fields) (answer []byte, code int, message string) {
	group := s.groups[r.text(1)]
	if method == "NodeGroupIncreaseSize" || method == "NodeGroupDeleteNodes" {
		group = s.groups[r.text(2)]
	}
	if strings.HasPrefix(method, "NodeGroup") && method != "NodeGroups" && group == nil {
		return nil, NotFound, "no such group"
	}
	switch method {
	case "Refresh":
		s.refreshCache()
	case "NodeGroups":
		for _, id := range slices.Sorted(maps.Keys(s.groups)) {
			g := s.groups[id]
			answer = appendMessage(answer, 1, appendInt(appendInt(appendText(nil, 1, g.ID), 2, g.Min), 3, g.Max))
		}
	case "NodeGroupTargetSize":
		answer = appendInt(nil, 1, group.Target)
	case "NodeGroupNodes":
		for _, m := range s.cache[group.ID] {
			answer = appendMessage(answer, 1, m.encodeInstance())
		}
	case "NodeGroupIncreaseSize":
		return s.increaseSize(group, r.number(1))
	case "NodeGroupDeleteNodes":
		return s.deleteNodes(group, r)
	case "NodeGroupTemplateNodeInfo":
		if group.Node == nil {
			return nil, Unimplemented, "no templates"
		}
		number := protowire.Number(2)
		if group.OldNodeFormat {
			number = 1
		}
		answer = appendMessage(nil, number, group.Node)
	case "PricingNodePrice":
		return s.nodePrice(r)
	default:
		return nil, Unimplemented, method
	}
	return answer, OK, ""
}

func (s *Server) increaseSize(group *Group, delta int) (response []byte, code int, message string) {
	n := 0
	for _, list := range s.machines {
		n += len(list)
	}
	switch {
	case delta <= 0:
		return nil, InvalidArgument, fmt.Sprintf("size increase is %d: must be positive", delta)
	case s.faults.Quota > 0 && n+delta > s.faults.Quota:
		return nil, ResourceExhausted, "machine quota exceeded"
	}
	group.Target += delta
	for range delta {
		s.addMachine(group.ID)
	}
	return nil, OK, ""
}

func (s *Server) deleteNodes(group *Group, r fields) (response []byte, code int, message string) {
	for _, raw := range r.allBytes(1) {
		node, err := parseFields(raw)
		if err != nil {
			return nil, InvalidArgument, err.Error()
		}
		i := slices.IndexFunc(s.machines[group.ID], func(m *Machine) bool { return m.ID == node.text(1) })
		if i < 0 {
			return nil, NotFound, "no such node"
		}
		group.Target--
		if s.faults.KeepDeletedListed {
			continue
		}
		m := s.machines[group.ID][i]
		m.state, m.deletionError = deleting, ""
	}
	return nil, OK, ""
}

// nodePrice returns the price of a node in a period. The node's label "group" names the group that has the price per
// hour.
func (s *Server) nodePrice(r fields) (response []byte, code int, message string) {
	node, err := parseFields(r.bytes(1))
	if err != nil {
		return nil, InvalidArgument, err.Error()
	}
	start, errStart := parseFields(r.bytes(4))
	end, errEnd := parseFields(r.bytes(5))
	if errStart != nil || errEnd != nil {
		return nil, InvalidArgument, "times"
	}
	for _, raw := range node.allBytes(3) {
		label, err := parseFields(raw)
		if g := s.groups[label.text(2)]; err == nil && label.text(1) == "group" && g != nil && g.Price > 0 {
			hours := float64(end.number(1)-start.number(1)) / 3600
			return appendFloat(nil, 1, g.Price*hours), OK, ""
		}
	}
	return nil, Unimplemented, "no prices"
}

// encodeInstance encodes the machine as the protocol's message Instance.
func (m Machine) encodeInstance() []byte {
	status := appendInt(nil, 1, int(m.state))
	if m.deletionError != "" {
		status = appendMessage(status, 2, appendInt(appendText(appendText(nil, 1, "DeletionFailed"), 2, m.deletionError), 3, 99))
	}
	return appendMessage(appendText(nil, 1, m.ID), 2, status)
}
