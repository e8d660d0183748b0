package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/agent"
	"github.com/slipway-dev/slipway/internal/config"
	"github.com/slipway-dev/slipway/internal/manager"
	"github.com/slipway-dev/slipway/internal/notice/condition"
	"github.com/slipway-dev/slipway/internal/notify"
	"github.com/slipway-dev/slipway/internal/placement/planner"
	"github.com/slipway-dev/slipway/internal/surge"
)

// completionTimeout limits how long the completion of a name waits for the API server.
const completionTimeout = 2 * time.Second

// kubectlCompletionName is the name under which kubectl runs this program to complete the arguments of its plugin.
const kubectlCompletionName = "kubectl_complete-slipway"

// completionArgs returns the arguments of the program. Under the name kubectl_complete-slipway, the program completes its
// arguments.
func completionArgs(program string, args []string) []string {
	if strings.TrimSuffix(filepath.Base(program), ".exe") != kubectlCompletionName {
		return args
	}
	return append([]string{cobra.ShellCompRequestCmd}, args...)
}

// flagValues maps the names of flags to their values, for all commands.
func flagValues() map[string][]string {
	values := map[string][]string{
		"dry-run":           {"none", "client", "server"},
		"eviction-requests": {config.EvictionRequestsAuto, config.EvictionRequestsNever},
		"log-format":        {"json", "text"},
		"log-level":         {"debug", "info", "warn", "error"},
		"moment":            toStrings(notify.Moments()),
		"on-unconfirmed":    toStrings(condition.RuleActions()),
		"on-rebalance":      toStrings(condition.RuleActions()),
		"orphans":           {manager.ReportOrphans, manager.DeleteOrphans},
		"policy":            toStrings(planner.Policies()),
		"surge":             toStrings([]surge.Mode{surge.Off, surge.Annotated, surge.On}),
		"reason": toStrings([]v1alpha1.Reason{
			v1alpha1.Requested, v1alpha1.Idle, v1alpha1.Underutilized, v1alpha1.Surplus, v1alpha1.Notice, v1alpha1.InstanceGone, v1alpha1.NeverReady,
		}),
	}
	for _, event := range []string{"freeze", "live-migration", "preempt", "reboot", "redeploy", "terminate", "unknown-freeze"} {
		values["on-"+event] = toStrings(agent.Actions())
	}
	return values
}

func toStrings[T ~string](all []T) []string {
	words := make([]string, len(all))
	for i, w := range all {
		words[i] = string(w)
	}
	return words
}

// Paths of the API.
var (
	nodesPath       = "/api/v1/nodes"
	groupsPath      = "/apis/" + v1alpha1.GroupVersion.String() + "/nodegroups"
	retirementsPath = "/apis/" + v1alpha1.GroupVersion.String() + "/noderetirements"
)

// argumentCompletions maps the names of commands to the completions of their arguments.
var argumentCompletions = map[string]cobra.CompletionFunc{
	"drain":             completeNodes,
	"report":            completeReportSubjects,
	"retire":            completeFirstArgument(completeNodes),
	"simulate-eviction": completeFirstArgument(completeNodes),
	"status":            completeNames(groupsPath),
	"why":               completeFirstArgument(completeNodesAndPods),
}

// addCompletions adds completions to a command and all commands below it. It keeps completions that a command has
// already.
func addCompletions(cmd *cobra.Command) {
	values := flagValues()
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		complete := findFlagCompletion(f, values)
		if complete != nil {
			_ = cmd.RegisterFlagCompletionFunc(f.Name, complete) // fails only if the command has one already
		}
	})
	if complete := argumentCompletions[cmd.Name()]; complete != nil && cmd.ValidArgsFunction == nil {
		cmd.ValidArgsFunction = complete
	} else if cmd.ValidArgsFunction == nil && cmd.Args != nil && cmd.ValidateArgs(nil) == nil && cmd.ValidateArgs([]string{"x"}) != nil {
		cmd.ValidArgsFunction = cobra.NoFileCompletions // the command has no arguments
	}
	for _, child := range cmd.Commands() {
		addCompletions(child)
	}
}

// findFlagCompletion returns the completion of a flag, or nil for a flag with a file name.
func findFlagCompletion(f *pflag.Flag, values map[string][]string) cobra.CompletionFunc {
	switch {
	case values[f.Name] != nil:
		return cobra.FixedCompletions(values[f.Name], cobra.ShellCompDirectiveNoFileComp)
	case f.Name == "namespace", f.Name == "surge-namespace":
		return completeNames("/api/v1/namespaces")
	case f.Name == "output":
		return completeOutput(f.Usage)
	case f.Name == "node":
		return completeNames(nodesPath)
	case f.Name == "context" || f.Name == "cluster" || f.Name == "user":
		return completeFromKubeconfig(f.Name)
	case f.Name == "receiver":
		return completeReceivers
	case f.Value.Type() != "string" && f.Value.Type() != "stringArray" && f.Value.Type() != "stringSlice":
		return cobra.NoFileCompletions
	}
	return nil
}

// quotedWord matches a value in the usage of a flag.
var quotedWord = regexp.MustCompile(`"([a-z]+)"`)

// completeOutput completes the values of -o. A command with other values than outputFlag quotes them in the usage of the
// flag. If the usage mentions files, names of files are completed too.
func completeOutput(usage string) cobra.CompletionFunc {
	switch usage {
	case outputUsage:
		return cobra.FixedCompletions(outputFormats, cobra.ShellCompDirectiveNoFileComp)
	case outputUsageWithoutNames:
		return cobra.FixedCompletions(outputFormatsWithoutNames, cobra.ShellCompDirectiveNoFileComp)
	}
	var formats []string
	for _, m := range quotedWord.FindAllStringSubmatch(usage, -1) {
		formats = append(formats, m[1])
	}
	if strings.Contains(usage, "file") {
		return cobra.FixedCompletions(formats, cobra.ShellCompDirectiveDefault)
	}
	return cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp)
}

// completeReportSubjects completes node/NAME, noderetirement/NAME and names of files.
func completeReportSubjects(cmd *cobra.Command, _ []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
	var kinds []cobra.Completion
	for _, kind := range []struct{ start, path string }{{"node/", nodesPath}, {"noderetirement/", retirementsPath}} {
		if name, ok := strings.CutPrefix(prefix, kind.start); ok {
			return listNames(cmd, kind.path, name, kind.start), cobra.ShellCompDirectiveNoFileComp
		}
		if strings.HasPrefix(kind.start, prefix) {
			kinds = append(kinds, kind.start)
		}
	}
	return kinds, cobra.ShellCompDirectiveNoSpace
}

func completeFirstArgument(complete cobra.CompletionFunc) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return complete(cmd, args, prefix)
	}
}

// completeNames completes the names of the objects at a path of the API.
func completeNames(path string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return listNames(cmd, path, prefix, ""), cobra.ShellCompDirectiveNoFileComp
	}
}

// completeNodes completes the names of nodes that are not in the arguments yet, also in the form node/NAME.
func completeNodes(cmd *cobra.Command, args []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
	found := slices.DeleteFunc(listNodeCompletions(cmd, prefix), func(c cobra.Completion) bool {
		name, _, _ := strings.Cut(c, "\t")
		return slices.Contains(args, name)
	})
	return found, cobra.ShellCompDirectiveNoFileComp
}

func listNodeCompletions(cmd *cobra.Command, prefix string) []cobra.Completion {
	for _, kind := range []string{"node/", "nodes/"} {
		if name, ok := strings.CutPrefix(prefix, kind); ok {
			return listNames(cmd, nodesPath, name, kind)
		}
	}
	return listNames(cmd, nodesPath, prefix, "")
}

// completeNodesAndPods completes the names of nodes, and of pods in all forms that slipway why accepts.
func completeNodesAndPods(cmd *cobra.Command, _ []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
	parts := strings.Split(prefix, "/")
	kind := ""
	if len(parts) > 1 && parts[0] == "pod" {
		kind, parts = "pod/", parts[1:]
	}
	switch {
	case len(parts) == 2 && parts[0] != "node":
		path := "/api/v1/namespaces/" + parts[0] + "/pods"
		return listNames(cmd, path, parts[1], kind+parts[0]+"/"), cobra.ShellCompDirectiveNoFileComp
	case len(parts) > 1:
		return listNodeCompletions(cmd, prefix), cobra.ShellCompDirectiveNoFileComp
	}
	var found []cobra.Completion
	if kind == "" {
		found = listNodeCompletions(cmd, prefix)
	}
	namespace, err := kubeFlagsOf(cmd).contextNamespace()
	if err != nil {
		return found, cobra.ShellCompDirectiveNoFileComp
	}
	return append(found, listNames(cmd, "/api/v1/namespaces/"+namespace+"/pods", parts[0], kind)...), cobra.ShellCompDirectiveNoFileComp
}

func completeFromKubeconfig(what string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
		file, err := kubeFlagsOf(cmd).flags.ToRawKubeConfigLoader().RawConfig()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var names []cobra.Completion
		add := func(name string) {
			if strings.HasPrefix(name, prefix) {
				names = append(names, name)
			}
		}
		switch what {
		case "context":
			for name := range file.Contexts {
				add(name)
			}
		case "cluster":
			for name := range file.Clusters {
				add(name)
			}
		case "user":
			for name := range file.AuthInfos {
				add(name)
			}
		}
		slices.Sort(names)
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeReceivers completes the names of the receivers in the file of --config.
func completeReceivers(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	file := cmd.Flags().Lookup("config")
	if file == nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	receivers, err := config.ReadReceivers(file.Value.String())
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return receiverNames(receivers), cobra.ShellCompDirectiveNoFileComp
}

// kubeFlagsOf returns the connection flags of a command.
func kubeFlagsOf(cmd *cobra.Command) kubeFlags {
	k := newKubeFlags("completion")
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	k.addFlags(fs)
	fs.VisitAll(func(f *pflag.Flag) {
		given := cmd.Flags().Lookup(f.Name)
		if given == nil || !given.Changed {
			return
		}
		list, isList := given.Value.(pflag.SliceValue)
		if own, ok := f.Value.(pflag.SliceValue); ok && isList {
			_ = own.Replace(list.GetSlice()) // the command has parsed the same values
		} else {
			_ = fs.Set(f.Name, given.Value.String())
		}
	})
	return k
}

// listNames returns the names of the objects at a path of the API that begin with a prefix, each as start + name with its
// state as a description. It returns nothing if the API server does not answer in time, because a completion cannot show an
// error.
func listNames(cmd *cobra.Command, path, prefix, start string) []cobra.Completion {
	cfg, err := kubeFlagsOf(cmd).restConfig()
	if err != nil {
		return nil
	}
	if cfg.ExecProvider != nil { // a plugin must not read the keys that the user types
		cfg.ExecProvider = cfg.ExecProvider.DeepCopy()
		cfg.ExecProvider.StdinUnavailable, cfg.ExecProvider.InteractiveMode = true, clientcmdapi.NeverExecInteractiveMode
	}
	cfg.Timeout = min(cmp.Or(cfg.Timeout, completionTimeout), completionTimeout)
	cfg.WarningHandler = rest.NoWarnings{}
	api, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completionTimeout)
	defer cancel()
	// Rows without objects are small, and resource version 0 lets the API server answer from its memory.
	answers := make(chan []byte, 1)
	go func() { // a credential plugin does not end with ctx
		raw, _ := api.RESTClient().Get().AbsPath(path).Param("includeObject", "None").Param("resourceVersion", "0").
			SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").MaxRetries(0).Do(ctx).Raw()
		answers <- raw
	}()
	var raw []byte
	select {
	case raw = <-answers:
	case <-ctx.Done():
	}
	var table metav1.Table
	if json.Unmarshal(raw, &table) != nil {
		return nil
	}
	var found []cobra.Completion
	for _, row := range table.Rows {
		name, ok := firstCell(row)
		if !ok || !strings.HasPrefix(name, prefix) {
			continue
		}
		state := ""
		if len(row.Cells) > 1 {
			state = fmt.Sprint(row.Cells[1])
		}
		found = append(found, cobra.CompletionWithDesc(start+name, state))
	}
	return found
}

func firstCell(row metav1.TableRow) (name string, ok bool) {
	if len(row.Cells) == 0 {
		return "", false
	}
	name, ok = row.Cells[0].(string)
	return name, ok
}
