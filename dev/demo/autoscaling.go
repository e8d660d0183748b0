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

// crowd is the namespace and the pool of the autoscaling step. crowdLabel selects its NodeGroup: the step's manager
// manages only that group, and the other managers ignore it.
const (
	crowd      = "crowd"
	crowdLabel = "demo.slipway.dev/crowd"
	crowdPods  = 60
	// crowdCooldown is the time that a node must be unneeded before it is retired.
	crowdCooldown = 2 * time.Second
)

// crowdCloud is the cloud of the machines.
type crowdCloud interface {
	// title returns the cloud's name.
	title() string
	// prepareCloud adds a group without machines, and returns the content of the --cloud-config file.
	prepareCloud(ctx context.Context, s *stage) (config map[string]any, err error)
	// group returns the group for new machines; labels returns the labels of their nodes.
	group() (provider, name string)
	labels() map[string]string
	// machineType returns the machine type that suits the pods, the CPU request of each pod, and the maximum number of
	// machines.
	machineType() (kind, cpu string, machines int)
	// listMachineTypes returns the types of the existing machines, as listed by the cloud.
	listMachineTypes(ctx context.Context, s *stage) ([]string, error)
	// joinMachines joins new machines to the cluster until ctx ends.
	joinMachines(ctx context.Context, s *stage) error
}

// runAutoscaling is the step with unschedulable pods that need new machines, and are then deleted.
func (s *stage) runAutoscaling(ctx context.Context, a *stepOutput) (_ string, err error) {
	a.startTime = time.Now()
	config, err := s.crowd.prepareCloud(ctx, s)
	if err != nil {
		return "", err
	}
	following, stop := context.WithCancel(ctx)
	followed := make(chan error, 1)
	go func() { followed <- s.crowd.joinMachines(following, s) }()
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
	maxMachines, err := s.createPodsAndAwaitScaleUp(ctx, a)
	if err != nil {
		return "", err
	}
	if err := s.deletePodsAndAwaitScaleDown(ctx, a); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d machines launched for %d pods, and none remains", maxMachines, crowdPods), nil
}

// createPodsAndAwaitScaleUp creates the pods, and waits until all of them run.
func (s *stage) createPodsAndAwaitScaleUp(ctx context.Context, a *stepOutput) (machines int, err error) {
	kind, cpu, maxMachines := s.crowd.machineType()
	app := workload.App{
		Namespace: crowd, Name: "crowd", Replicas: crowdPods, CPU: resource.MustParse(cpu), Memory: resource.MustParse("600Mi"),
		StopSeconds: "0.1", NodeSelector: s.crowd.labels(),
	}
	a.startTime = time.Now()
	if err := workload.Create(ctx, s.Client(), workload.NewNamespace(crowd), app.Deployment()); err != nil {
		return 0, err
	}
	a.print(time.Now(), "%d pods of %s cores are created, and no machine can run them", crowdPods, cpu)
	err = testbed.PollUntil(ctx, "machines are launched", func() bool {
		all, err := s.crowd.listMachineTypes(ctx, s)
		return err == nil && len(all) > 0
	})
	if err != nil {
		return 0, err
	}
	a.print(time.Now(), "%s launches machines", s.crowd.title())
	err = testbed.PollUntil(ctx, "all pods run", func() bool {
		d, err := s.Client().AppsV1().Deployments(crowd).Get(ctx, app.Name, metav1.GetOptions{})
		return err == nil && d.Status.ReadyReplicas == crowdPods
	})
	if err != nil {
		return 0, err
	}
	all, err := s.crowd.listMachineTypes(ctx, s)
	if err != nil {
		return 0, err
	}
	a.print(time.Now(), "all %d pods run, on %d machines of type %s", crowdPods, len(all), kind)
	wrong := slices.DeleteFunc(slices.Clone(all), func(is string) bool { return strings.EqualFold(is, kind) })
	return len(all), errors.Join(
		checkExpectation(len(wrong) == 0, "machines of type "+kind, "%v", wrong),
		checkExpectation(len(all) <= maxMachines, fmt.Sprintf("at most %d machines", maxMachines), "%d", len(all)),
	)
}

// deletePodsAndAwaitScaleDown deletes the pods, and waits until the machines are deleted.
func (s *stage) deletePodsAndAwaitScaleDown(ctx context.Context, a *stepOutput) error {
	if err := s.Client().AppsV1().Deployments(crowd).Delete(ctx, "crowd", metav1.DeleteOptions{}); err != nil {
		return err
	}
	a.print(time.Now(), "the pods are deleted. A node that is not needed for %s is retired", crowdCooldown)
	left := ""
	err := testbed.PollUntil(ctx, "the machines are deleted", func() bool {
		all, err := s.crowd.listMachineTypes(ctx, s)
		if err != nil {
			return false
		}
		nodes, err := s.crowdNodes(ctx)
		left = fmt.Sprintf("%d machines and %d nodes remain", len(all), len(nodes))
		return err == nil && len(all) == 0 && len(nodes) == 0
	})
	if err != nil {
		return fmt.Errorf("%w: %s", err, left)
	}
	a.print(time.Now(), "the last machine and its Node are deleted")
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

// createCrowdGroup creates the NodeGroup of this step. All nodes without pods may be retired at once.
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

// startCrowdManager starts a manager for this step only, which no other step kills.
func (s *stage) startCrowdManager(ctx context.Context, clouds map[string]any) (*testbed.Manager, error) {
	return s.StartManager(ctx, "manager-of-crowd", clouds,
		"--group-poll-interval", "1s", "--scale-poll-interval", "1s", "--poll-interval", "500ms", "--cloud-poll-interval", "500ms",
		"--retry-interval", retryInterval.String(), "--selector", crowdLabel)
}
