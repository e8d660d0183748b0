package testbed

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/slipway-dev/slipway/dev/controlplane"
)

// RepositoryRoot returns the root directory of the repository. It is the parent directory of the dev module.
func RepositoryRoot() (string, error) {
	out, err := exec.Command("go", "env", "GOMOD").Output() //nolint:noctx // returns at once
	if err != nil {
		return "", fmt.Errorf("go env GOMOD: %w", err)
	}
	dir := filepath.Dir(strings.TrimSpace(string(out)))
	if filepath.Base(dir) == "dev" {
		dir = filepath.Dir(dir)
	}
	if _, err := os.Stat(filepath.Join(dir, "cmd", "slipway-agent")); err != nil {
		return "", fmt.Errorf("the directory %s is not in the Slipway repository: %w", dir, err)
	}
	return dir, nil
}

// BinDirVariable is the name of the environment variable that holds the directory of prebuilt binaries. `make test`
// sets it, because asking the go command costs each test package about a second.
const BinDirVariable = "SLIPWAY_BIN"

var buildBinaries = sync.OnceValues(func() (string, error) {
	if built := os.Getenv(BinDirVariable); built != "" {
		return built, nil
	}
	root, err := RepositoryRoot()
	if err != nil {
		return "", err
	}
	bin := filepath.Join(root, "bin")
	return bin, BuildPackages(context.Background(), bin+"/", "./cmd/slipway", "./cmd/slipway-agent")
})

// BuildPackages compiles packages, given by their paths in the repository. It uses the flags of `make build`, so
// that the build cache serves both. The output is a file, or a directory that ends in a slash.
func BuildPackages(ctx context.Context, output string, packages ...string) error {
	return BuildModulePackages(ctx, "", output, packages...)
}

// BuildModulePackages compiles packages as [BuildPackages] does, from the module in a folder of the repository.
func BuildModulePackages(ctx context.Context, module, output string, packages ...string) error {
	root, err := RepositoryRoot()
	if err != nil {
		return err
	}
	args := slices.Concat([]string{"build"}, controlplane.BuildFlags, []string{"-ldflags", "-s -w", "-o", output}, packages)
	cmd := exec.CommandContext(ctx, "go", args...) //nolint:gosec // constants, and a path from the tests
	cmd.Dir = filepath.Join(root, module)
	cmd.Env = append(os.Environ(), controlplane.BuildEnvironment...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", strings.Join(packages, " "), err, out)
	}
	return nil
}

// EnsureBinary returns the path of a binary in the directory that BinDirVariable names. If the variable is empty,
// EnsureBinary first builds all binaries.
func EnsureBinary(name string) (string, error) {
	dir, err := buildBinaries()
	return filepath.Join(dir, name), err
}

// Agent is a slipway-agent process, or another program that guards a node in the same way.
type Agent struct {
	*controlplane.Process

	Node string
	// Kubeconfig is the file with the agent's credentials.
	Kubeconfig string
	metrics    string

	powerSupply
}

// StartAgent starts the agent of one machine in a pool, and waits until the agent has read the notices once. The
// agent's token is bound to the node, like the token that a kubelet mounts. The given flags override the flags that
// the testbed sets.
func (t *Testbed) StartAgent(ctx context.Context, pool controlplane.AKSPool, instance int, flags ...string) (*Agent, error) {
	return t.startAgentWithFlags(ctx, agentProgram{"slipway-agent", nil}, pool, instance, "/readyz", flags)
}

// StartSlipwayAgent starts an agent as StartAgent does, but runs the command `slipway agent`.
func (t *Testbed) StartSlipwayAgent(ctx context.Context, pool controlplane.AKSPool, instance int, flags ...string) (*Agent, error) {
	return t.startAgentWithFlags(ctx, agentProgram{"slipway", []string{"agent"}}, pool, instance, "/readyz", flags)
}

// agentProgram is a binary, and the arguments that make it run as an agent.
type agentProgram struct {
	binary string
	args   []string
}

// StartAgentNoWait starts an agent but does not wait until it is ready. Use it for an agent that may never become
// ready. A restart does not wait either.
func (t *Testbed) StartAgentNoWait(ctx context.Context, pool controlplane.AKSPool, instance int, flags ...string) (*Agent, error) {
	return t.startAgentWithFlags(ctx, agentProgram{"slipway-agent", nil}, pool, instance, "", flags)
}

func (t *Testbed) startAgentWithFlags(ctx context.Context, p agentProgram, pool controlplane.AKSPool, instance int, ready string,
	flags []string,
) (*Agent, error) {
	return t.StartAgentProgram(ctx, pool, instance, p.binary, ready, func(w AgentSettings) (args, env []string) {
		args = append(slices.Clone(p.args),
			"--node-name", w.Node, "--kubeconfig", w.Kubeconfig, "--endpoint", w.Endpoint, "--listen", w.Listen)
		return append(args, flags...), nil
	})
}

// AgentSettings holds what a program needs to know about a machine to run as its agent.
type AgentSettings struct{ Node, Kubeconfig, Endpoint, Listen string }

// StartAgentProgram runs a binary as the agent of a machine, with a token of the shipped ServiceAccount. It calls
// command for the arguments and the environment. It waits until the HTTP path in ready returns 200, unless ready is empty.
func (t *Testbed) StartAgentProgram(ctx context.Context, pool controlplane.AKSPool, instance int, program, ready string,
	command func(AgentSettings) (args, env []string),
) (*Agent, error) {
	path, err := EnsureBinary(program)
	if err != nil {
		return nil, err
	}
	node := pool.NodeName(instance)
	kubeconfig, err := t.WriteAgentKubeconfig(ctx, node)
	if err != nil {
		return nil, err
	}
	listen, err := controlplane.ReserveFreeAddress(ctx)
	if err != nil {
		return nil, err
	}
	args, env := command(AgentSettings{node, kubeconfig, t.ScheduledEventsURL(pool, instance), listen})
	run := controlplane.Command{Name: t.nextProcessName(node), Path: path, Args: args, Env: env}
	if ready != "" {
		run.ReadyURL = "http://" + listen + ready
	}
	process, err := t.StartProcess(ctx, run)
	if err != nil {
		return nil, err
	}
	a := &Agent{Process: process, Node: node, Kubeconfig: kubeconfig, metrics: "http://" + listen}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.agents[node] = a
	return a, nil
}

// WriteAgentKubeconfig writes a kubeconfig for the agent of a node, and returns its path. If the node does not exist
// yet, its token is bound to no node. Such an agent can only read.
func (t *Testbed) WriteAgentKubeconfig(ctx context.Context, node string) (kubeconfig string, err error) {
	token := controlplane.TokenOptions{Node: node, Duration: tokenLifetime}
	kubeconfig, err = t.ServiceAccountKubeconfig(ctx, AgentNamespace, AgentAccount, token)
	if !apierrors.IsNotFound(err) {
		return kubeconfig, err
	}
	token.Node = ""
	return t.ServiceAccountKubeconfig(ctx, AgentNamespace, AgentAccount, token)
}

// KillIfAlive kills the agent. If the agent has ended already, it does nothing.
func (a *Agent) KillIfAlive() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// RestartIfDead starts an agent that has ended again, with the same command, as the kubelet does. If the machine has
// no power, it does nothing, because PowerOn starts the agent later.
func (a *Agent) RestartIfDead(ctx context.Context) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.off || a.IsAlive() {
		return nil
	}
	return a.Restart(ctx)
}

// tokenLifetime is the requested lifetime of an agent's token. A testbed may run for a day. The API server may grant
// a shorter lifetime.
const tokenLifetime = 24 * time.Hour

// AgentProcessName returns the process name of the first agent of a node.
func AgentProcessName(node string) string { return "agent-" + node }

// nextProcessName returns the process name for the next agent of a node.
func (t *Testbed) nextProcessName(node string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.agentStarts[node]++
	if n := t.agentStarts[node]; n > 1 {
		return fmt.Sprintf("%s-%d", AgentProcessName(node), n)
	}
	return AgentProcessName(node)
}

// anyFreePort is a listen address that uses any free port of the loopback interface.
const anyFreePort = "127.0.0.1:0"

func (a *Agent) httpGet(ctx context.Context, path string) (statusCode int, text string) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.metrics+path, nil)
	if err != nil {
		return 0, ""
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, ""
	}
	defer func() { _ = resp.Body.Close() }() // read only
	var body bytes.Buffer
	_, _ = body.ReadFrom(resp.Body)
	return resp.StatusCode, body.String()
}

// MetricsAddress returns the address of the agent's metrics endpoint as HOST:PORT.
func (a *Agent) MetricsAddress() string { return strings.TrimPrefix(a.metrics, "http://") }

// IsReady reads the agent's readiness endpoint. It reports whether the agent guards its node, and returns the text
// of the response.
func (a *Agent) IsReady(ctx context.Context) (ready bool, explanation string) {
	code, body := a.httpGet(ctx, "/readyz")
	return code == http.StatusOK, body
}

// IsHealthy reports whether the agent's health endpoint returns 200. It returns false if the agent does not respond.
func (a *Agent) IsHealthy(ctx context.Context) bool {
	code, _ := a.httpGet(ctx, "/healthz")
	return code == http.StatusOK
}

// ReadMetric returns the value of one time series of the agent. It returns false if the agent has no such series.
// The name is in the exposition format, such as slipway_drains_total{outcome="drained"}.
func (a *Agent) ReadMetric(ctx context.Context, series string) (value float64, found bool) {
	for line := range strings.Lines(a.ReadMetrics(ctx)) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), series+" "); ok {
			f, err := strconv.ParseFloat(value, 64)
			return f, err == nil
		}
	}
	return 0, false
}

// ReadMetrics returns all metrics of the agent, in the exposition format of Prometheus.
func (a *Agent) ReadMetrics(ctx context.Context) string {
	_, body := a.httpGet(ctx, "/metrics")
	return body
}

// ReadLog returns the lines of the agent's JSON log, each as a map.
func (a *Agent) ReadLog() []map[string]any {
	raw, err := os.ReadFile(a.LogFile())
	if err != nil {
		return nil
	}
	var lines []map[string]any
	for line := range bytes.Lines(raw) {
		var l map[string]any
		if json.Unmarshal(line, &l) == nil {
			lines = append(lines, l)
		}
	}
	return lines
}

// HasLogged reports whether the agent's log has a line with the given message.
func (a *Agent) HasLogged(message string) bool {
	for _, l := range a.ReadLog() {
		if l["msg"] == message {
			return true
		}
	}
	return false
}

// ResidentMemory returns the current and the peak resident memory of the agent's process in bytes.
func (a *Agent) ResidentMemory() (now, peak int64, err error) {
	memory, err := a.readMemoryStatus()
	return memory["VmRSS:"], memory["VmHWM:"], err
}

// AnonymousMemory returns the resident memory of the agent's heap and stacks in bytes. It leaves out the mapped part
// of the binary's file. That part depends on the kernel, which also maps pages that the process does not use.
func (a *Agent) AnonymousMemory() (int64, error) {
	memory, err := a.readMemoryStatus()
	return memory["RssAnon:"], err
}

// readMemoryStatus returns the memory sizes in the status file of the agent's process, in bytes.
func (a *Agent) readMemoryStatus() (map[string]int64, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", a.PID()))
	if err != nil {
		return nil, err
	}
	sizes := map[string]int64{}
	for line := range strings.Lines(string(raw)) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[2] == "kB" {
			kib, _ := strconv.ParseInt(fields[1], 10, 64)
			sizes[fields[0]] = kib << 10
		}
	}
	return sizes, nil
}
