package internal_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// layers are the folders of the module, from the bottom to the top. A package imports its own layer and lower ones.
var layers = [][]string{
	{"api", "internal/elapsed", "internal/kubeapi", "internal/observe", "internal/renamed", "internal/screen", "internal/sharedread", "internal/testing"},
	{"internal/cordon"},
	{"internal/drainability"},
	{"internal/cloud", "internal/instances", "internal/nodegroup/acceptance", "internal/notice", "internal/notify", "internal/semaphore", "internal/surge", "plugin"},
	{"internal/drain", "internal/placement"},
	{"internal/placement/filter"},
	{"internal/placement/snapshot"},
	{"internal/placement/live", "internal/placement/saved"},
	{"internal/placement/planner"},
	{"internal/placement/explain", "internal/placement/placementtest"},
	{"internal/bootstrap", "internal/provisioning/launch", "internal/retirement"},
	{"internal/nodegroup"},
	{"internal/orphans", "internal/provisioning", "internal/surge/room"},
	{"internal/agent", "internal/cloudpool", "internal/manager"},
	{"internal/config", "internal/doctor", "internal/queueagents", "internal/report", "internal/top"},
	{"internal/compat"},
	{"cmd", "tools/docgen"},
}

// apart lists what a folder does not import although it is in a lower layer.
var apart = map[string][]string{
	"internal/agent":             {"api", "internal/cloud", "internal/placement", "k8s.io"},
	"internal/cloud":             {"internal/kubeapi", "k8s.io/client-go/kubernetes", "sigs.k8s.io/controller-runtime"},
	"internal/drain":             {"api", "internal/cloud", "internal/notice", "k8s.io/api", "k8s.io/client-go"},
	"internal/notice":            {"internal/cloud"},
	"internal/drainability/node": {"api", "internal/cordon", "internal/kubeapi", "k8s.io"},
	"internal/drainability/pod":  {"api", "internal/cordon", "internal/kubeapi", "k8s.io"},
	"internal/placement":         {"api", "internal/cloud", "internal/kubeapi"},
}

const module = "github.com/slipway-dev/slipway/"

func TestImportsRunOneWay(t *testing.T) {
	// -e: a package of another operating system has no files here.
	out, err := exec.Command("go", "list", "-e", "-f", `{{.ImportPath}} {{join .Imports " "}}`, module+"...").Output()
	if err != nil || len(out) == 0 {
		t.Fatalf("go list: %v", err)
	}
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(strings.ReplaceAll(line, module, ""))
		importer, imports := fields[0], fields[1:]
		for folder, others := range apart {
			for _, imported := range imports {
				if within(importer, folder) && slices.ContainsFunc(others, func(o string) bool { return within(imported, o) }) {
					t.Errorf("%s imports %s, which %s is to know nothing of", importer, imported, folder)
				}
			}
		}
		at := layerOf(importer)
		if at < 0 {
			if strings.HasPrefix(importer, "internal/") {
				t.Errorf("%s is in no layer", importer)
			}
			continue
		}
		for _, imported := range imports {
			if layerOf(imported) > at {
				t.Errorf("%s imports %s, which is above it", importer, imported)
			}
		}
	}
}

func within(path, folder string) bool { return path == folder || strings.HasPrefix(path, folder+"/") }

// layerOf returns the layer of the longest folder that a package is in; -1 if there is none.
func layerOf(path string) int {
	at, longest := -1, 0
	for i, folders := range layers {
		for _, folder := range folders {
			if len(folder) > longest && within(path, folder) {
				at, longest = i, len(folder)
			}
		}
	}
	return at
}
