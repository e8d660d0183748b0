package plugin

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"github.com/hashicorp/go-plugin/runner"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	pluginv1 "github.com/slipway-dev/slipway/api/plugin/v1"
	"github.com/slipway-dev/slipway/internal/cloud/advice"
	"github.com/slipway-dev/slipway/internal/cloud/plugin/protocol"
	"github.com/slipway-dev/slipway/internal/cloud/plugin/wire"
)

// Bounds on what is waited for when a plugin does not do its part.
const (
	politeness = 2 * time.Second // after it was asked to end, before it is ended
	probing    = 5 * time.Second // for a sign of life
)

// process is a plugin that runs, with its configuration accepted.
type process struct {
	*program
	client   *goplugin.Client
	provider pluginv1.CloudProviderClient
	analyzer pluginv1.PodEventAnalyzerClient
	health   grpc_health_v1.HealthClient
	events   advice.Events
	began    time.Time
}

// services is how go-plugin hands out the connection, which the clients of all services share.
type services struct {
	goplugin.NetRPCUnsupportedPlugin
}

// GRPCServer implements goplugin.GRPCPlugin: there is nothing to serve on this side.
func (services) GRPCServer(*goplugin.GRPCBroker, *grpc.Server) error {
	return errors.ErrUnsupported
}

// GRPCClient implements goplugin.GRPCPlugin.
func (services) GRPCClient(_ context.Context, _ *goplugin.GRPCBroker, conn *grpc.ClientConn) (any, error) {
	return conn, nil
}

// start runs a plugin's file until its configuration is accepted, or ctx ends. It leaves nothing behind when it fails.
func start(ctx context.Context, path string, e Entry, lines *lineLog) (*process, error) {
	p := &process{program: newProgram(path, environment(e.Environment, e.memoryLimit()), e.memoryLimit(), lines)}
	p.began = time.Now()
	p.client = goplugin.NewClient(&goplugin.ClientConfig{
		HandshakeConfig:  protocol.Handshake(),
		Plugins:          goplugin.PluginSet{protocol.Name: services{}},
		AllowedProtocols: []goplugin.Protocol{goplugin.ProtocolGRPC},
		AutoMTLS:         true,
		SkipHostEnv:      true,
		StartTimeout:     2 * orDefault(e.StartTimeout), // ctx ends first
		Logger:           hclog.NewNullLogger(),
		SyncStdout:       lines,
		SyncStderr:       lines,
		RunnerFunc: func(_ hclog.Logger, as *exec.Cmd, _ string) (runner.Runner, error) {
			p.cmd.Env = append(p.cmd.Env, as.Env...)
			return p.program, nil
		},
		GRPCDialOptions: []grpc.DialOption{
			grpc.WithDefaultCallOptions(
				grpc.MaxCallRecvMsgSize(wire.MaxMessage), grpc.MaxCallSendMsgSize(wire.MaxMessage)),
			grpc.WithDisableServiceConfig(),
		},
	})
	ready := make(chan error, 1)
	go func() { ready <- p.open(ctx, e) }() // go-plugin has no context to end it by
	var err error
	select {
	case err = <-ready:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		err = p.explain(err)
		p.kill() //nolint:contextcheck // ctx may have ended, and the plugin is to end all the same
		return nil, err
	}
	return p, nil
}

// open connects with the plugin and hands over its configuration.
func (p *process) open(ctx context.Context, e Entry) error {
	connection, err := p.client.Client()
	if err != nil {
		return err
	}
	service, err := connection.Dispense(protocol.Name)
	if err != nil {
		return err
	}
	conn, ok := service.(*grpc.ClientConn)
	if !ok {
		return fmt.Errorf("go-plugin gave a %T where a connection is wanted", service)
	}
	p.provider = pluginv1.NewCloudProviderClient(conn)
	p.analyzer = pluginv1.NewPodEventAnalyzerClient(conn)
	p.health = grpc_health_v1.NewHealthClient(conn)
	answer, err := p.provider.Configure(ctx, &pluginv1.ConfigureRequest{Name: e.ProviderName(), ConfigJson: e.configJSON()})
	if status.Code(err) == codes.InvalidArgument {
		return &configError{told(err)}
	}
	if err != nil {
		return fmt.Errorf("configuring it: %w", err)
	}
	p.events = advice.Events{Modify: answer.GetModifyEventAnalyzer(), Delete: answer.GetDeleteEventAnalyzer()}
	return nil
}

// configError is a plugin's refusal of its configuration.
type configError struct{ error }

func (e *configError) Unwrap() error { return e.error }

// told gives the text of a status without gRPC's words around it.
func told(err error) error { return errors.New(status.Convert(err).Message()) }

// hasEnded reports whether the process is known to have ended.
func (p *process) hasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// endsBy waits until the process has ended, or until it is time.
func (p *process) endsBy(deadline time.Time) bool {
	select {
	case <-p.ended:
		return true
	case <-time.After(time.Until(deadline)):
		return false
	}
}

// responds asks for a sign of life.
func (p *process) responds() bool {
	ctx, cancel := context.WithTimeout(context.Background(), probing)
	defer cancel()
	_, err := p.health.Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: goplugin.GRPCServiceName})
	return err == nil
}

// stop asks the plugin to end, and ends it if it does not. It returns within twice the politeness.
func (p *process) stop() {
	done := p.clean()
	select {
	case <-done:
	case <-time.After(politeness):
		p.end(done)
	}
}

// kill ends the plugin. It returns within the politeness.
func (p *process) kill() {
	if err := p.Kill(context.Background()); err != nil {
		p.lines.log.Error("the plugin cannot be ended", "err", err)
	}
	p.end(p.clean())
}

// clean has go-plugin give up the connection, which may wait for the plugin as long as it lives.
func (p *process) clean() <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.client.Kill()
	}()
	return done
}

func (p *process) end(done <-chan struct{}) {
	if err := p.Kill(context.Background()); err != nil {
		p.lines.log.Error("the plugin cannot be ended", "err", err)
	}
	select {
	case <-done:
	case <-time.After(politeness):
		p.lines.log.Warn("the plugin was ended, and its connection is still being closed", "pid", p.ID())
	}
}
