package chart_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/internal/config"
	"github.com/slipway-dev/slipway/internal/manager"
)

// TestTheProgramsReadTheFilesThatTheChartWrites parses the files from the chart with the code of the programs.
func TestTheProgramsReadTheFilesThatTheChartWrites(t *testing.T) {
	t.Parallel()
	read := map[string]int{}
	for _, s := range sets(t) {
		if s.chart != slipwayChart {
			continue
		}
		all := objects(t, s.manifest(t))
		for _, o := range all {
			if o.GetKind() != "ConfigMap" {
				continue
			}
			for file, text := range find[corev1.ConfigMap](t, all, "ConfigMap", o.GetName()).Data {
				var err error
				switch file {
				case "agent.yaml":
					_, err = config.DecodeAgentFile([]byte(text))
				case "clouds.yaml":
					_, err = manager.ReadClouds(testbed.WriteTempFile(t, file, text))
				case "nodegroups.yaml":
					_, err = manager.ParseGroups([]byte(text))
				default:
					continue
				}
				read[file]++
				if err != nil {
					t.Errorf("%s: %s: %v\n%s", s.name(), file, err, text)
				}
			}
		}
	}
	for _, file := range []string{"agent.yaml", "clouds.yaml", "nodegroups.yaml"} {
		if read[file] == 0 {
			t.Errorf("no set of values makes a %s", file)
		}
	}
}
