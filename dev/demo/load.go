package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/dev/workload"
)

// crowd is the namespace and the pool of the pods that come and go, and the label by which the manager of their step
// knows its NodeGroup, which the others leave alone.
const (
	crowd      = "crowd"
	crowdLabel = "demo.slipway.dev/crowd"
	crowdPods  = 60
	// crowdCooldown is for how long a node must be one that could go.
	crowdCooldown = 2 * time.Second
)

// crowdCloud is where the machines come from.
type crowdCloud interface {
	// title is the cloud's name, for people.
	title() string
	// prepare makes the group known of which there are no machines yet, and gives the file of --cloud-config.
	prepare(ctx context.Context, s *stage) (config map[string]any, err error)
	// group is the one that machines are ordered of, and labels are on their nodes.
	group() (provider, name string)
	labels() map[string]string
	// right is the kind of machine that suits the pods, each of which requests so much cpu, and no more than so many of
	// them are needed.
	right() (kind, cpu string, machines int)
	// machines are the kinds of those that there are, by the cloud's own account.
	machines(ctx context.Context, s *stage) ([]string, error)
	// follow has the machines that come join the cluster until ctx ends.
	follow(ctx context.Context, s *stage) error
}

// comeAndGo is the step in which pods come for which there is no room, and go again.
func (s *stage) comeAndGo(ctx context.Context, a *account) (_ string, err error) {
	a.began = time.Now()
	config, err := s.crowd.prepare(ctx, s)
	if err != nil {
		return "", err
	}
	following, stop := context.WithCancel(ctx)
	followed := make(chan error, 1)
	go func() { followed <- s.crowd.follow(following, s) }()
	defer func() {
		stop()
		err = errors.Join(err, <-followed)
	}()
	if err := s.createCrowdGroup(ctx); err != nil {
		return "", err
	}
	process, err := s.startCrowdManager(ctx, config)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, process.Kill()) }()
	most, err := s.come(ctx, a)
	if err != nil {
		return "", err
	}
	if err := s.leave(ctx, a); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d machines came for %d pods, and none is left", most, crowdPods), nil
}

// come has the pods come, and waits until all of them run.
func (s *stage) come(ctx context.Context, a *account) (machines int, err error) {
	kind, cpu, most := s.crowd.right()
	app := workload.App{
		Namespace: crowd, Name: "crowd", Replicas: crowdPods, CPU: resource.MustParse(cpu), Memory: resource.MustParse("600Mi"),
		Stop: "0.1", NodeSelector: s.crowd.labels(),
	}
	a.began = time.Now()
	if err := workload.Create(ctx, s.Client(), workload.Namespace(crowd), app.Deployment()); err != nil {
		return 0, err
	}
	a.say(time.Now(), "%d pods of %s cores come, and there is no machine that they may run on", crowdPods, cpu)
	err = testbed.Poll(ctx, "machines are made", func() bool {
		all, err := s.crowd.machines(ctx, s)
		return err == nil && len(all) > 0
	})
	if err != nil {
		return 0, err
	}
	a.say(time.Now(), "%s makes machines", s.crowd.title())
	err = testbed.Poll(ctx, "all pods run", func() bool {
		d, err := s.Client().AppsV1().Deployments(crowd).Get(ctx, app.Name, metav1.GetOptions{})
		return err == nil && d.Status.ReadyReplicas == crowdPods
	})
	if err != nil {
		return 0, err
	}
	all, err := s.crowd.machines(ctx, s)
	if err != nil {
		return 0, err
	}
	a.say(time.Now(), "all %d pods run, on %d machines of %s", crowdPods, len(all), kind)
	wrong := slices.DeleteFunc(slices.Clone(all), func(is string) bool { return strings.EqualFold(is, kind) })
	return len(all), errors.Join(
		expect(len(wrong) == 0, "machines of "+kind, "%v", wrong),
		expect(len(all) <= most, fmt.Sprintf("at most %d machines", most), "%d", len(all)),
	)
}

// leave has the pods go, and waits until the machines are gone.
func (s *stage) leave(ctx context.Context, a *account) error {
	if err := s.Client().AppsV1().Deployments(crowd).Delete(ctx, "crowd", metav1.DeleteOptions{}); err != nil {
		return err
	}
	a.say(time.Now(), "the pods go. A node that nobody needs for %s is to leave", crowdCooldown)
	left := ""
	err := testbed.Poll(ctx, "the machines are gone", func() bool {
		all, err := s.crowd.machines(ctx, s)
		if err != nil {
			return false
		}
		nodes, err := s.crowdNodes(ctx)
		left = fmt.Sprintf("%d machines and %d nodes are left", len(all), len(nodes))
		return err == nil && len(all) == 0 && len(nodes) == 0
	})
	if err != nil {
		return fmt.Errorf("%w: %s", err, left)
	}
	a.say(time.Now(), "the last machine is gone, with its Node")
	return nil
}

func (s *stage) crowdNodes(ctx context.Context) ([]corev1.Node, error) {
	list, err := s.Client().CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: metav1.FormatLabelSelector(
		&metav1.LabelSelector{MatchLabels: s.crowd.labels()})})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// createCrowdGroup creates the NodeGroup that gets machines, and gives them back. Those whose pods are gone may all leave
// at once.
func (s *stage) createCrowdGroup(ctx context.Context) error {
	provider, name := s.crowd.group()
	nodes, err := json.Marshal(s.crowd.labels())
	if err != nil {
		return err
	}
	return s.CreateNodeGroup(ctx, crowd, map[string]string{crowdLabel: "true"}, fmt.Sprintf(
		"nodeSelector: {matchLabels: %s}\ncloud: {provider: %s, group: %s}\nmaxSize: 20\nscaleUp: {}\n"+
			"scaleDown: {underutilized: {cooldown: %s}}\ndisruptionBudgets: [{nodes: 100%%}]\n", nodes, provider, name, crowdCooldown))
}

// startCrowdManager starts a manager of this step's own, which nobody kills in the middle.
func (s *stage) startCrowdManager(ctx context.Context, clouds map[string]any) (*testbed.Manager, error) {
	return s.StartManager(ctx, "manager-of-crowd", clouds,
		"--group-poll-interval", "1s", "--scale-poll-interval", "1s", "--poll-interval", "500ms", "--cloud-poll-interval", "500ms",
		"--retry-interval", retryAfter.String(), "--selector", crowdLabel)
}
