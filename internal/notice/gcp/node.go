package gcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/notice/poll"
)

// NodeSourceName is the value of [notice.Notice.Source] in the notices of a [NodeSource].
const NodeSourceName = "gke"

// IDs of the notices of a [NodeSource].
const (
	nodeMaintenanceID = "maintenance"
	nodeTerminationID = "termination"
)

// What GKE writes on the Node of a VM
// (https://cloud.google.com/kubernetes-engine/docs/concepts/handle-disruption-gpu-tpu).
const (
	// scheduledLabel has the start of a planned maintenance, in seconds since the epoch.
	scheduledLabel = "cloud.google.com/scheduled-maintenance-time"
	// activeLabel is ONGOING while GKE stops the pods for a maintenance.
	activeLabel = "cloud.google.com/active-node-maintenance"
	// upcomingAnnotation describes a planned maintenance as the API does.
	upcomingAnnotation = "node.gke.io/upcoming-maintenance"
	// terminationTaint is on a Node that GKE is about to stop. Some versions also set a condition of this type.
	terminationTaint = "cloud.google.com/impending-node-termination"
	// spotLabel and preemptibleLabel are "true" for a VM that can be preempted.
	spotLabel        = "cloud.google.com/gke-spot"
	preemptibleLabel = "cloud.google.com/gke-preemptible"
)

const (
	// PerformLabel asks GKE to start a planned maintenance now. Its value is "true".
	PerformLabel = "cloud.google.com/perform-maintenance"
	// performAnnotation says that Slipway has set PerformLabel. Only then Slipway removes the label (I3).
	performAnnotation = "gke.slipway.dev/perform-maintenance"
)

// nodeTerminationNotice is how soon a Node with only the termination taint may stop.
const nodeTerminationNotice = time.Minute

const (
	// cleanUpDelay is how long no maintenance must be due before PerformLabel is removed. A maintenance that is planned for
	// later must not find the label: it would start without a drain. GKE may need a moment to replace the label of the planned
	// maintenance by the label of the active one. It is also the pause after a failed removal.
	cleanUpDelay = 10 * time.Second
)

// leadCheckInterval is the longest pause between two checks whether a planned maintenance is due. A timer of weeks would be
// wrong after a change of the clock.
const leadCheckInterval = time.Minute

// NodePatcher patches the agent's Node with a JSON merge patch. *kubeapi.Client implements it.
type NodePatcher interface {
	PatchNode(ctx context.Context, name string, patch []byte) (*kubeapi.Node, error)
}

// NodeSourceOptions configures a [NodeSource]. Resource is required.
type NodeSourceOptions struct {
	// Resource is the VM's name, for [notice.Notice.Resources].
	Resource string
	// Leads are how long before a planned maintenance the agent acts.
	Leads poll.Leads
	// API sets and removes PerformLabel; nil changes nothing on the Node.
	API NodePatcher
	Log *slog.Logger // may be nil
}

// NodeSource converts what GKE writes on the agent's Node to notices. It needs no credentials of the cloud. Its methods are
// safe for concurrent use.
type NodeSource struct {
	options NodeSourceOptions
	planner *poll.Planner
	changed chan struct{}

	mu       sync.Mutex
	node     *kubeapi.Node // latest state
	lastRead time.Time
}

// NewNodeSource validates the options and returns a source. An error names the option, its value and what is allowed.
func NewNodeSource(o NodeSourceOptions) (*NodeSource, error) {
	if o.Resource == "" {
		return nil, errors.New("resource name: is empty, want the name of the VM")
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &NodeSource{options: o, planner: poll.NewPlanner(o.Leads), changed: make(chan struct{}, 1)}, nil
}

// Name returns the value of [notice.Notice.Source] in this source's notices.
func (s *NodeSource) Name() string { return NodeSourceName }

// LastRead returns when the source last received the Node. It returns the zero time before the first call of ObserveNode.
func (s *NodeSource) LastRead() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lastRead
}

// ResumeNotices passes the notices that an earlier agent process was acting on.
func (s *NodeSource) ResumeNotices(notices []notice.Notice) { s.planner.Resume(notices) }

// ObserveNode passes the newest state of the Node to the source. It does not block.
func (s *NodeSource) ObserveNode(node *kubeapi.Node) {
	s.mu.Lock()
	s.node, s.lastRead = node, time.Now()
	s.mu.Unlock()
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

func (s *NodeSource) currentNode() *kubeapi.Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.node
}

// Run calls emit with snapshots until ctx ends. The first snapshot follows the first ObserveNode, and each further one follows
// a change of the notices. Run also removes the label that Approve has set, once the maintenance is over.
func (s *NodeSource) Run(ctx context.Context, emit func(notice.Snapshot)) {
	timer := time.NewTimer(0)
	timer.Stop()
	defer timer.Stop()
	var last *notice.Snapshot
	var noneSince time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.changed:
		case <-timer.C:
		}
		node := s.currentNode()
		now := time.Now()
		snapshot := s.toSnapshot(node, now)
		if last == nil || !reflect.DeepEqual(last.Notices, snapshot.Notices) || !reflect.DeepEqual(last.Planned, snapshot.Planned) ||
			!slices.EqualFunc(last.Unreadable, snapshot.Unreadable, func(a, b notice.Problem) bool { return a.ID == b.ID }) {
			emit(snapshot)
			last = &snapshot
		}
		timer.Reset(leadCheckInterval)
		if len(snapshot.Notices)+len(snapshot.Unreadable) > 0 {
			noneSince = time.Time{}
			continue
		}
		if noneSince.IsZero() {
			noneSince = now
		}
		if now.Sub(noneSince) < cleanUpDelay {
			timer.Reset(cleanUpDelay)
			continue
		}
		if err := s.cleanUp(ctx, node); err != nil && ctx.Err() == nil {
			s.options.Log.Warn("cannot remove the label of a finished maintenance, will retry", "label", PerformLabel, "err", err)
			timer.Reset(cleanUpDelay)
		}
	}
}

// toSnapshot returns the notices on the Node.
func (s *NodeSource) toSnapshot(node *kubeapi.Node, now time.Time) notice.Snapshot {
	m, unreadable := readNodeMaintenance(node)
	stopping := isTerminating(node)
	var snapshot notice.Snapshot
	n := notice.Notice{
		ID: nodeMaintenanceID, Source: NodeSourceName, Type: notice.Redeploy, Status: notice.Scheduled, Resources: []string{s.options.Resource},
		Duration: poll.UnknownDuration, NotApprovable: true,
	}
	isSpot := node.Labels[spotLabel] == "true" || node.Labels[preemptibleLabel] == "true"
	termination := n
	termination.ID, termination.Type, termination.NoticePeriod, termination.Description = nodeTerminationID, notice.Terminate, nodeTerminationNotice, "GKE stops the node"
	if isSpot {
		termination.Type, termination.NoticePeriod, termination.Description = notice.Preempt, 0, "GKE stops the Spot node"
	}
	if m != nil {
		m.Ongoing = m.Ongoing || stopping && !isSpot && m.isExpected(node, now)
		n.NotApprovable = m.Fixed || m.Ongoing || stopping
		snapshot = m.toSnapshot(n)
	}
	if stopping && (m == nil || !m.Ongoing) { // it does not wait for a planned maintenance
		snapshot.Notices = append(snapshot.Notices, termination)
	}
	snapshot.At = now
	snapshot.Notices, snapshot.Planned, _ = s.planner.Split(snapshot.Notices, now)
	if unreadable != nil {
		snapshot.Unreadable = []notice.Problem{{ID: nodeMaintenanceID, NamesInstance: true, Err: unreadable}}
	}
	return snapshot
}

// isExpected reports whether a stop of the Node is probably the begin of the maintenance: it was requested, or is planned to begin
// soon, or at an unknown time. GKE may set the termination taint before activeLabel, and an hour before the planned time.
func (m *plannedMaintenance) isExpected(node *kubeapi.Node, now time.Time) bool {
	return node.Labels[PerformLabel] == "true" || m.Start.Sub(now) <= gpuMaintenanceNotice
}

// readNodeMaintenance returns the maintenance of the Node's VM, or nil if there is none. The label has the time. The
// annotation says whether the maintenance can start earlier, and why it is needed. Without the label the annotation alone is
// enough. An annotation that cannot be read may announce a maintenance or none.
func readNodeMaintenance(node *kubeapi.Node) (m *plannedMaintenance, unreadable error) {
	const annotation = "annotation " + upcomingAnnotation
	if value, has := node.Annotations[upcomingAnnotation]; has {
		m, unreadable = parsePlannedMaintenance(annotation, strings.TrimSpace(value))
	}
	if value, has := node.Labels[scheduledLabel]; has {
		if m == nil {
			m = &plannedMaintenance{}
		}
		start, err := poll.ParseTime(value)
		if unreadable = nil; err == nil {
			m.Start, m.Warnings = start, nil
		} else if m.Start.IsZero() {
			m.Warnings = append(m.Warnings, fmt.Errorf("label %s: %w; assuming that the maintenance is due", scheduledLabel, err))
		}
	}
	if active := node.Labels[activeLabel]; active != "" && !slices.Contains([]string{"COMPLETE", "COMPLETED", "NONE", "FALSE"}, strings.ToUpper(active)) {
		if m == nil {
			m = &plannedMaintenance{}
		}
		m.Ongoing, unreadable = true, nil
	}
	return m, unreadable
}

func isTerminating(node *kubeapi.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t kubeapi.Taint) bool { return t.Key == terminationTaint }) ||
		slices.ContainsFunc(node.Status.Conditions, func(c kubeapi.Condition) bool { return c.Type == terminationTaint && c.Status == "True" })
}

// Approve asks GKE to start the planned maintenance now. It sets a label on the Node. If the label is set already, with any
// value, it sends nothing.
func (s *NodeSource) Approve(ctx context.Context, ids ...string) error {
	node := s.currentNode()
	if s.options.API == nil || node == nil || !slices.Contains(ids, nodeMaintenanceID) {
		return nil
	}
	if _, set := node.Labels[PerformLabel]; set {
		return nil
	}
	return s.patch(ctx, node, "true", time.Now().UTC().Format(time.RFC3339))
}

// cleanUp removes the label that Approve has set. Otherwise the next maintenance would start without a drain.
func (s *NodeSource) cleanUp(ctx context.Context, node *kubeapi.Node) error {
	if _, ours := node.Annotations[performAnnotation]; s.options.API == nil || !ours {
		return nil
	}
	return s.patch(ctx, node, nil, nil)
}

// patch sets PerformLabel and its annotation; nil removes them. The patch fails if another Node has
// replaced this one.
func (s *NodeSource) patch(ctx context.Context, node *kubeapi.Node, label, annotation any) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid":    node.UID,
		"labels": map[string]any{PerformLabel: label}, "annotations": map[string]any{performAnnotation: annotation},
	}})
	if err != nil {
		return err
	}
	if _, err := s.options.API.PatchNode(ctx, node.Name, patch); err != nil {
		return fmt.Errorf("node %s: label %s: %w", node.Name, PerformLabel, err)
	}
	return nil
}
