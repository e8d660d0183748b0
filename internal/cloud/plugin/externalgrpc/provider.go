package externalgrpc

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
	corev1 "k8s.io/api/core/v1"

	pb "github.com/slipway-dev/slipway/api/externalgrpc/v1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/sharedread"
)

// maxMessageSize limits the size of a response in bytes.
const maxMessageSize = 16 << 20

// deletionTimeout is how long an instance may be listed as running after its deletion was requested. The provider may
// start the deletion late, or lose it without an error.
const deletionTimeout = 15 * time.Minute

// Provider is a [cloud.Provider] for a server of the external gRPC protocol. It is safe for concurrent use.
type Provider struct {
	config    Config
	timeout   time.Duration
	conn      *grpc.ClientConn
	client    pb.CloudProviderClient
	snapshots sharedread.Reader[*snapshot]

	mu        sync.Mutex
	deletions map[string]*deletionRequest // by provider ID
	lastGroup map[string]string           // last known group of an instance, by provider ID
}

var _ cloud.Provider = (*Provider)(nil)

// deletionRequest is a deletion that this process has requested. err and uncertainError are set before done is closed.
type deletionRequest struct {
	done           chan struct{}
	began          time.Time
	err            error
	uncertainError string // error of the request if the deletion may have started anyway
}

// New returns a provider. It does not connect. If the server does not respond, each call returns an error.
func New(c Config) (*Provider, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	transport, err := c.transportCredentials()
	if err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient(c.Address, grpc.WithTransportCredentials(transport), grpc.WithDisableServiceConfig(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessageSize)))
	if err != nil {
		return nil, fmt.Errorf("address: %s: %w", c.Address, err)
	}
	p := &Provider{
		config: c, timeout: c.CallTimeout.Duration, conn: conn, client: pb.NewCloudProviderClient(conn),
		deletions: map[string]*deletionRequest{}, lastGroup: map[string]string{},
	}
	if p.timeout == 0 {
		p.timeout = defaultTimeout
	}
	return p, nil
}

// Close closes the connection and cancels the calls in progress.
func (p *Provider) Close() error {
	return p.conn.Close()
}

// call makes one call, limited by the configured timeout, and converts its error.
func (p *Provider) call(ctx context.Context, method string, do func(context.Context) error) error {
	bounded, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	return p.toProviderError(ctx, method, do(bounded))
}

// Name implements cloud.Provider. It returns the configured name.
func (p *Provider) Name() string { return p.config.Name }

// Normalize returns an ID with the provider's prefix unchanged. It returns an error for every other ID.
func (p *Provider) Normalize(id string) (string, error) {
	rest, ours := strings.CutPrefix(id, p.config.ProviderIDPrefix)
	if !ours || rest == "" {
		return "", fmt.Errorf("provider ID %q: want an ID of %s, which starts with %s", id, p.config.Name, p.config.ProviderIDPrefix)
	}
	return id, nil
}

// Group implements cloud.Provider.
func (p *Provider) Group(ctx context.Context, name string) (cloud.Group, error) {
	r, err := p.readSnapshot(ctx)
	if err != nil {
		return cloud.Group{}, err
	}
	return r.findGroup(name)
}

func (r *snapshot) findGroup(name string) (cloud.Group, error) {
	g, ok := r.groups[name]
	if !ok && len(r.groups) == 0 {
		return g, fmt.Errorf("group %s: the provider returned an empty list of groups, which is not trusted", name)
	}
	if !ok {
		return g, &cloud.NotFoundError{Kind: "group", Name: name}
	}
	return g, nil
}

// Instances implements cloud.Provider.
func (p *Provider) Instances(ctx context.Context, group string) ([]cloud.Instance, error) {
	r, err := p.readSnapshot(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := r.findGroup(group); err != nil {
		return nil, err
	}
	return append([]cloud.Instance{}, r.instances[group]...), nil
}

// Instance implements cloud.Provider.
func (p *Provider) Instance(ctx context.Context, id string) (cloud.Instance, error) {
	if _, err := p.Normalize(id); err != nil {
		return cloud.Instance{}, err
	}
	r, err := p.readSnapshot(ctx)
	if err != nil {
		return cloud.Instance{}, err
	}
	return p.findInstance(r, id)
}

// operation is the content of cloud.Operation.ID.
type operation struct {
	Delete string `json:"delete,omitempty"`
	Grow   string `json:"grow,omitempty"` // the group
	// FailedBefore are the instances of the group that had an error before the launch, by provider ID.
	FailedBefore []string `json:"failedBefore,omitempty"`
}

// Delete implements cloud.Provider. The protocol does not define what a second deletion of the same instance does. Some
// providers decrease the size twice. So this process does not repeat a deletion that may still start. That is a
// deletion that was accepted, or that lost its response.
func (p *Provider) Delete(ctx context.Context, id string) (cloud.Operation, error) {
	if _, err := p.Normalize(id); err != nil {
		return cloud.Operation{}, err
	}
	if err := ctx.Err(); err != nil {
		return cloud.Operation{}, fmt.Errorf("deleting %s: %w", id, err)
	}
	p.mu.Lock()
	d := p.deletions[id]
	if d == nil {
		d = &deletionRequest{done: make(chan struct{}), began: time.Now()}
		p.deletions[id] = d
		go p.sendSharedDeletion(context.WithoutCancel(ctx), id, d)
		p.mu.Unlock()
		return p.awaitDeletionRequest(ctx, id, d)
	}
	p.mu.Unlock()
	if op, err := p.awaitDeletionRequest(ctx, id, d); err != nil {
		return op, err
	}
	return p.checkOrRepeatDeletion(ctx, id, d)
}

// sendSharedDeletion sends one deletion for all callers that wait for it. It has its own timeout and ignores the first
// caller's context. Otherwise it would remain unknown whether the size decreases.
func (p *Provider) sendSharedDeletion(ctx context.Context, id string, d *deletionRequest) {
	d.err = p.sendDeletion(ctx, id, d)
	if d.err != nil {
		p.forgetDeletion(id, d)
	}
	close(d.done)
}

func (p *Provider) sendDeletion(ctx context.Context, id string, d *deletionRequest) error {
	r, err := p.readSnapshot(ctx)
	if err != nil {
		return err
	}
	i, err := p.findInstance(r, id)
	switch {
	case err != nil:
		return err
	case i.State == cloud.Deleting:
		return nil
	case r.groups[i.Group].Size <= r.groups[i.Group].Min:
		return &cloud.RefusedError{Reason: cloud.AtLimit, Err: fmt.Errorf("group %s is at its minimum of %d", i.Group, r.groups[i.Group].Min)}
	}
	var sent peer.Peer
	err = p.call(ctx, "NodeGroupDeleteNodes", func(ctx context.Context) error {
		_, err := p.client.NodeGroupDeleteNodes(ctx, &pb.NodeGroupDeleteNodesRequest{
			Id: i.Group, Nodes: []*pb.ExternalGrpcNode{{ProviderID: id, Name: i.Name}},
		}, grpc.Peer(&sent))
		return err
	})
	if err != nil && sent.Addr != nil && p.mayHaveStartedDeletion(ctx, err, id, r.groups[i.Group]) {
		d.uncertainError = err.Error() // the state of the instance decides
		return nil
	}
	return err
}

// mayHaveStartedDeletion reports whether a deletion may have started although the provider returned an error. A started
// deletion that counts as refused would lose an instance without a drain. A refused deletion that counts as started
// only costs time. So the codes that gRPC itself returns for a lost response do not count as refusals. INTERNAL is one
// of them, because it means a reset stream.
//
// UNKNOWN is Go's code for a plain error, and most providers return it for a refusal. The cluster autoscaler also
// retries after UNKNOWN. Some providers decrease the size before they fail, and the page of a proxy is UNKNOWN too. So
// the provider is read again after UNKNOWN. Every other code is a refusal.
func (p *Provider) mayHaveStartedDeletion(ctx context.Context, err error, id string, before cloud.Group) bool {
	switch status.Code(err) {
	case codes.DeadlineExceeded, codes.Canceled, codes.Unavailable, codes.Internal, codes.DataLoss:
		return !cloud.IsThrottled(err)
	case codes.Unknown:
		r, err := p.readSnapshot(ctx)
		if err != nil {
			return true
		}
		i, err := p.findInstance(r, id)
		return err != nil || i.State == cloud.Deleting || r.groups[i.Group].Size < before.Size
	}
	return false
}

func (p *Provider) awaitDeletionRequest(ctx context.Context, id string, d *deletionRequest) (cloud.Operation, error) {
	select {
	case <-d.done:
	case <-ctx.Done():
		return cloud.Operation{}, fmt.Errorf("deleting %s: %w", id, context.Cause(ctx))
	}
	if d.err != nil {
		return cloud.Operation{}, d.err
	}
	return cloud.NewOperation(operation{Delete: id}, d.began), nil
}

// checkOrRepeatDeletion returns the operation of an earlier deletion. If that deletion has failed, it requests the
// deletion again.
func (p *Provider) checkOrRepeatDeletion(ctx context.Context, id string, d *deletionRequest) (cloud.Operation, error) {
	i, err := p.Instance(ctx, id)
	if cloud.IsNotFound(err) {
		p.forgetDeletion(id, d)
	}
	if err != nil {
		return cloud.Operation{}, err
	}
	if deletionFailure(i, d.began) != nil {
		p.forgetDeletion(id, d)
		return p.Delete(ctx, id)
	}
	return cloud.NewOperation(operation{Delete: id}, d.began), nil
}

// uncertainDeletionError returns the error text of a deletion that may have started anyway. It returns "" if there was
// no such error.
func (p *Provider) uncertainDeletionError(id string) string {
	p.mu.Lock()
	d := p.deletions[id]
	p.mu.Unlock()
	if d == nil {
		return ""
	}
	select {
	case <-d.done:
		return d.uncertainError
	default:
		return ""
	}
}

func (p *Provider) forgetDeletion(id string, d *deletionRequest) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.deletions[id] == d {
		delete(p.deletions, id)
	}
}

// deletionFailure returns why a deletion has failed, from the state of its instance. It returns nil while the deletion
// may still proceed.
func deletionFailure(i cloud.Instance, began time.Time) error {
	switch {
	case i.State == cloud.Failed:
		return instanceError(i)
	case i.State != cloud.Deleting && time.Since(began) > deletionTimeout:
		return fmt.Errorf("instance %s is still %s, %s after its deletion was requested", i.ProviderID, i.State,
			time.Since(began).Round(time.Second))
	}
	return nil
}

// Templates implements cloud.Provider. It returns one template with the name of the group. The rest of the template is
// empty if the server does not provide one.
func (p *Provider) Templates(ctx context.Context, group string) ([]cloud.Template, error) {
	if _, err := p.Group(ctx, group); err != nil {
		return nil, err
	}
	t := cloud.Template{Name: group}
	var answer *pb.NodeGroupTemplateNodeInfoResponse
	err := p.call(ctx, "NodeGroupTemplateNodeInfo", func(ctx context.Context) (err error) {
		answer, err = p.client.NodeGroupTemplateNodeInfo(ctx, &pb.NodeGroupTemplateNodeInfoRequest{Id: group})
		if status.Code(err) == codes.Unimplemented {
			err = nil
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	raw := answer.GetNodeBytes()
	if len(raw) == 0 {
		raw = answer.GetNodeInfo()
	}
	if len(raw) == 0 { // the provider has no template; it is learned from a Node
		return []cloud.Template{t}, nil
	}
	var node corev1.Node
	if err := node.Unmarshal(raw); err != nil {
		return nil, fmt.Errorf("provider %s: group %s: the template's Node: %w", p.config.Name, group, err)
	}
	t.Capacity, t.Labels, t.Taints = node.Status.Capacity, node.Labels, node.Spec.Taints
	t.Zone = node.Labels[corev1.LabelTopologyZone]
	t.Cost = p.hourlyPrice(ctx, &node)
	return []cloud.Template{t}, nil
}

// hourlyPrice returns the price of an instance per hour. It returns 0 if the price is unknown. Prices only serve to
// compare groups.
func (p *Provider) hourlyPrice(ctx context.Context, node *corev1.Node) float64 {
	from := time.Now()
	var answer *pb.PricingNodePriceResponse
	err := p.call(ctx, "PricingNodePrice", func(ctx context.Context) (err error) {
		answer, err = p.client.PricingNodePrice(ctx, &pb.PricingNodePriceRequest{
			Node:           &pb.ExternalGrpcNode{ProviderID: node.Spec.ProviderID, Name: node.Name, Labels: node.Labels},
			StartTimestamp: timestamppb.New(from), EndTimestamp: timestamppb.New(from.Add(time.Hour)),
		})
		return err
	})
	if cost := answer.GetPrice(); err == nil && cost > 0 {
		return cost
	}
	return 0
}

// Grow implements cloud.Provider. It refuses every template except the group's only one.
func (p *Provider) Grow(ctx context.Context, group string, order cloud.LaunchRequest) (cloud.Operation, error) {
	if err := order.Validate(group); err != nil {
		return cloud.Operation{}, err
	}
	r, err := p.readSnapshot(ctx)
	if err != nil {
		return cloud.Operation{}, err
	}
	g, err := r.findGroup(group)
	if err != nil {
		return cloud.Operation{}, err
	}
	switch {
	case order.Template != "" && order.Template != group:
		return cloud.Operation{}, &cloud.RefusedError{Reason: cloud.Invalid, Err: fmt.Errorf("template %q: group %s has only the template %q",
			order.Template, group, group)}
	case g.Max > 0 && order.Count > g.Max-g.Size:
		return cloud.Operation{}, &cloud.RefusedError{Reason: cloud.AtLimit, Err: fmt.Errorf("growing group %s by %d: it has %d instances of at most %d",
			group, order.Count, g.Size, g.Max)}
	}
	began := time.Now()
	err = p.call(ctx, "NodeGroupIncreaseSize", func(ctx context.Context) error {
		_, err := p.client.NodeGroupIncreaseSize(ctx, &pb.NodeGroupIncreaseSizeRequest{Id: group, Delta: int32(order.Count)})
		return err
	})
	if err != nil {
		return cloud.Operation{}, err
	}
	o := operation{Grow: group}
	for _, i := range r.instances[group] {
		if i.State == cloud.Failed {
			o.FailedBefore = append(o.FailedBefore, i.ProviderID)
		}
	}
	return cloud.NewOperation(o, began), nil
}

// Status implements cloud.Provider. The state of the operation's instances decides the result.
func (p *Provider) Status(ctx context.Context, op cloud.Operation) (cloud.OperationStatus, error) {
	if op.ID == "" {
		return cloud.OperationStatus{Done: true}, nil
	}
	var o operation
	if err := cloud.DecodeOperation(op.ID, &o); err != nil || (o.Delete == "") == (o.Grow == "") {
		return cloud.OperationStatus{}, fmt.Errorf("operation %q: not an operation of provider %s", op.ID, p.config.Name)
	}
	r, err := p.readSnapshot(ctx)
	if err != nil {
		return cloud.OperationStatus{}, err
	}
	if o.Grow != "" {
		return r.growStatus(o)
	}
	i, err := p.findInstance(r, o.Delete)
	switch {
	case cloud.IsNotFound(err):
		p.mu.Lock()
		delete(p.deletions, o.Delete)
		p.mu.Unlock()
		return cloud.OperationStatus{Done: true}, nil
	case err != nil:
		return cloud.OperationStatus{}, err
	}
	failure := deletionFailure(i, op.Started)
	if lost := p.uncertainDeletionError(o.Delete); failure != nil && lost != "" {
		failure = fmt.Errorf("%w; the request failed with %s", failure, lost)
	}
	return cloud.OperationStatus{Done: failure != nil, Err: failure}, nil
}

// growStatus returns the progress of a launch, which is done when the group has its target size. The size also counts
// failed instances. The launch has failed if an instance has an error that it did not have before.
func (r *snapshot) growStatus(o operation) (cloud.OperationStatus, error) {
	g, err := r.findGroup(o.Grow)
	if cloud.IsNotFound(err) {
		return cloud.OperationStatus{Done: true}, nil
	}
	if err != nil {
		return cloud.OperationStatus{}, err
	}
	present := 0
	var failure error
	for _, i := range r.instances[o.Grow] {
		switch {
		case i.State == cloud.Pending:
			return cloud.OperationStatus{}, nil
		case i.State == cloud.Deleting:
		case i.State == cloud.Failed && !slices.Contains(o.FailedBefore, i.ProviderID):
			failure = instanceError(i)
		default:
			present++
		}
	}
	if present >= g.Size {
		return cloud.OperationStatus{Done: true}, nil
	}
	return cloud.OperationStatus{Done: failure != nil, Err: failure}, nil
}

// instanceError returns the error of a failed instance.
func instanceError(i cloud.Instance) error {
	err := fmt.Errorf("instance %s: %s", i.ProviderID, i.Message)
	if i.Refusal == "" {
		return err
	}
	return &cloud.RefusedError{Reason: i.Refusal, Err: err}
}
