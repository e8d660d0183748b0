package azure

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	// DefaultListen is the default address of Main.
	DefaultListen = "127.0.0.1:16925"
	// shutdownGrace is the time that Main waits for running requests. Emulator.Close ends hanging ones.
	shutdownGrace = 5 * time.Second
	// firstListTimeout limits the wait for the first list of nodes and pods.
	firstListTimeout = 30 * time.Second
)

type mainSettings struct {
	listen     string
	kubeconfig string
	scaleSets  []scaleSetFlag
	options    Options
	arm        armSettings
	nodes      *NodeMap // nodes of the cluster, or nil
}

// scaleSetFlag is the name of a scale set, and the address of the listener for only this scale set. The address may
// be empty.
type scaleSetFlag struct{ name, listen string }

// RunEmulator serves an emulator until ctx ends. One listener serves all scale sets; flags add listeners for single
// scale sets. With --kubeconfig, the emulator keeps the ledger, knows the scale sets of the cluster's nodes, and
// switches nodes with power. Without --kubeconfig or power, events affect no machine. With --arm-listen, it also
// serves Azure Resource Manager. New machines then become nodes if power implements NodeJoiner. RunEmulator prints
// the addresses to out once all listeners answer. For a help flag it returns flag.ErrHelp.
func RunEmulator(ctx context.Context, args []string, out io.Writer, power NodePower) error {
	s, err := parseFlags(args, out)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if s.kubeconfig != "" {
		if err := s.watchCluster(ctx, power); err != nil {
			return fmt.Errorf("Azure emulator: --kubeconfig %s: %w", s.kubeconfig, err)
		}
	}
	e := New(s.options)
	defer e.Close()
	if s.nodes != nil {
		joiner, _ := power.(NodeJoiner)
		if err := s.arm.serveARM(ctx, e, s.nodes, joiner); err != nil {
			return fmt.Errorf("Azure emulator: %w", err)
		}
	}
	if err := s.serve(ctx, e, out); err != nil {
		return fmt.Errorf("Azure emulator: %w", err)
	}
	return nil
}

func parseFlags(args []string, out io.Writer) (*mainSettings, error) {
	s := &mainSettings{options: Options{
		Notices: map[EventType]time.Duration{},
		Log:     slog.New(slog.NewTextHandler(out, nil)),
	}}
	flags := flag.NewFlagSet("azure", flag.ContinueOnError)
	flags.SetOutput(out)
	flags.StringVar(&s.listen, "listen", DefaultListen, "loopback `address` of the listener that serves everything")
	flags.StringVar(&s.kubeconfig, "kubeconfig", "", "kubeconfig `file` of the cluster; its nodes are the machines")
	flags.Func("scale-set", "`name[=address]` of a scale set, with the loopback address of its own listener;"+
		" may be repeated", s.addScaleSet)
	flags.Func("notice", "`type=duration` of a notice, such as Reboot=20s, overrides the documented one; may be repeated",
		s.addNotice)
	flags.StringVar(&s.arm.listen, "arm-listen", "", "loopback `address` of Azure Resource Manager, over TLS; requires --kubeconfig")
	flags.StringVar(&s.arm.caFile, "arm-ca-file", "", "`file` to write the certificate of Azure Resource Manager to")
	flags.DurationVar(&s.options.Outage, "outage", defaultOutage,
		"downtime of a machine in an event of unknown duration")
	flags.DurationVar(&s.options.StartedAfterImpact, "linger", 0, "time that an event stays Started after its impact")
	flags.DurationVar(&s.options.ApprovalDelay, "approval-delay", 0, "time from an event's first approval to its start")
	flags.DurationVar(&s.options.FirstCallDelay, "first-call", 0, "duration of a scale set's first call; up to 2m in Azure")
	if err := flags.Parse(args); err != nil {
		return nil, err // the flag package has told the user already
	}
	if flags.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q: the emulator has only flags", flags.Arg(0))
	}
	for name, d := range map[string]time.Duration{
		"outage": s.options.Outage, "linger": s.options.StartedAfterImpact, "approval-delay": s.options.ApprovalDelay,
		"first-call": s.options.FirstCallDelay,
	} {
		if d < 0 {
			return nil, fmt.Errorf("--%s %v: must be a positive duration", name, d)
		}
	}
	if s.arm.listen != "" && s.kubeconfig == "" {
		return nil, errors.New("--arm-listen requires --kubeconfig, because its machines are the nodes of a cluster")
	}
	return s, errors.Join(requireLoopback("--listen", s.listen), s.arm.validate())
}

func (s *mainSettings) addScaleSet(value string) error {
	name, listen, own := strings.Cut(value, "=")
	if name == "" || strings.ContainsAny(name, "/ ") {
		return errors.New("must be name or name=address")
	}
	if own {
		if err := requireLoopback("address", listen); err != nil {
			return err
		}
	}
	s.scaleSets = append(s.scaleSets, scaleSetFlag{name, listen})
	return nil
}

func (s *mainSettings) addNotice(value string) error {
	name, text, _ := strings.Cut(value, "=")
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return fmt.Errorf("must be type=duration with a duration such as 30s, not %q", text)
	}
	for _, t := range EventTypes() {
		if strings.EqualFold(string(t), name) {
			s.options.Notices[t] = d
			return nil
		}
	}
	return fmt.Errorf("unknown type %q: must be one of %v", name, EventTypes())
}

// requireLoopback returns an error for an address that other computers could reach. Every client of the emulator can
// switch machines off.
func requireLoopback(field, address string) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("%s %q: must be a loopback address with a port, such as %s: %w", field, address, DefaultListen, err)
	}
	if ip := net.ParseIP(host); host == "localhost" || (ip != nil && ip.IsLoopback()) {
		return nil
	}
	return fmt.Errorf("%s %q: must be a loopback address, such as %s", field, address, DefaultListen)
}

func (s *mainSettings) watchCluster(ctx context.Context, power NodePower) error {
	config, err := clientcmd.BuildConfigFromFlags("", s.kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	return s.watchNodesAndPods(ctx, client, power)
}

func (s *mainSettings) watchNodesAndPods(ctx context.Context, client kubernetes.Interface, power NodePower) error {
	watchCtx, stopWatching := context.WithCancelCause(ctx)
	timer := time.AfterFunc(firstListTimeout, func() {
		stopWatching(fmt.Errorf("no answer within %v", firstListTimeout))
	})
	nodes, err := WatchNodes(watchCtx, client, s.options.Log)
	if err != nil {
		return err
	}
	pods, err := WatchPods(watchCtx, client, nodes)
	if err != nil {
		return err
	}
	if !timer.Stop() {
		return context.Cause(watchCtx)
	}
	s.options.LedgerBuilder = pods
	if power != nil {
		s.options.Machines = nodes.NewMachines(power)
	}
	s.nodes = nodes
	for _, name := range nodes.ScaleSets() {
		s.scaleSets = append(s.scaleSets, scaleSetFlag{name: name})
	}
	return nil
}

type servedListener struct {
	what     string
	listener net.Listener
	server   *http.Server
}

// serve opens all listeners, prints their addresses, and serves until ctx ends.
func (s *mainSettings) serve(ctx context.Context, e *Emulator, out io.Writer) error {
	endpoints, err := s.openListeners(e)
	if err != nil {
		return err
	}
	for _, end := range endpoints {
		if _, err := fmt.Fprintf(out, "%s: http://%s\n", end.what, end.listener.Addr()); err != nil {
			closeListeners(endpoints)
			return fmt.Errorf("writing the addresses: %w", err)
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, end := range endpoints {
		group.Go(func() error {
			if err := end.server.Serve(end.listener); !errors.Is(err, http.ErrServerClosed) {
				return fmt.Errorf("serving %s: %w", end.what, err)
			}
			return nil
		})
		group.Go(func() error {
			<-ctx.Done()
			e.Close() // ends held requests, so that Shutdown does not wait for them
			grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownGrace)
			defer cancel()
			return end.server.Shutdown(grace)
		})
	}
	return group.Wait()
}

func (s *mainSettings) openListeners(e *Emulator) ([]servedListener, error) {
	var endpoints []servedListener
	open := func(what, address string, handler http.Handler) error {
		listener, err := net.Listen("tcp", address) //nolint:noctx // returns at once
		if err != nil {
			closeListeners(endpoints)
			return fmt.Errorf("%s: %w", what, err)
		}
		server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
		endpoints = append(endpoints, servedListener{what, listener, server})
		return nil
	}
	if err := open("everything, with the control API under /emulator/", s.listen, e.Handler()); err != nil {
		return nil, err
	}
	for _, f := range s.scaleSets {
		set := e.EnsureScaleSet(f.name)
		if f.listen == "" {
			continue
		}
		if err := open("scale set "+set.Name(), f.listen, set.Handler()); err != nil {
			return nil, err
		}
	}
	return endpoints, nil
}

func closeListeners(endpoints []servedListener) {
	for _, end := range endpoints {
		_ = end.listener.Close()
	}
}
