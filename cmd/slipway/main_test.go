package main

import (
	"strings"
	"testing"

	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

func TestHelpShowsCommandsInGroups(t *testing.T) {
	help, err := runOffline(t, "--help")
	must.NoError(t, err)
	var groups []string
	for line := range strings.Lines(help) {
		line = strings.TrimSuffix(line, "\n")
		name, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch {
		case strings.HasSuffix(line, ":") && !strings.HasPrefix(line, " "):
			groups = append(groups, line)
		case strings.HasPrefix(line, "  ") && len(groups) > 0:
			groups[len(groups)-1] += " " + name
		}
	}
	check.Equal(t, []string{
		"Usage: slipway",
		"Nodes: status top drain retire",
		"Explain: plan why report doctor snapshot",
		"Operate Slipway: agent manager cloudpool notify plugin simulate-eviction version help completion",
		"Compatibility (drop-in replacements for other tools): aks-node-termination-handler aws-node-termination-handler mechanic " +
			"vmss-pod-watcher openstack-autoscaler kubeaware-cloudpool-proxy migrate",
		"Flags: -h, -v,",
	}, groups)
}
