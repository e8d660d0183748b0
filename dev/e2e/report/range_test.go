package report_test

import (
	"context"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/internal/report"
)

// The agent runs outside of the cluster, so its log cannot be read.
func TestReportOfTimeRangeGroupsRowsByNode(t *testing.T) {
	bed := testbed.StartShared(t)
	ctx := testbed.TestContext(t)
	check(t, bed.InstallCRDs(ctx))
	pool := controlplane.AKSPool{Name: "range", Spot: true}
	bed.Azure.EnsureScaleSet(pool.ScaleSetName())
	t.Cleanup(func() { // a DaemonSet of another test would wait for the evicted node
		for i := range 2 {
			check(t, bed.Client().CoreV1().Nodes().Delete(context.WithoutCancel(ctx), pool.NodeName(i), metav1.DeleteOptions{}))
		}
	})
	check(t, bed.AddNodes(ctx, pool.Node(0), pool.Node(1)))
	agent, err := bed.StartAgent(ctx, pool, 0)
	check(t, err)
	testbed.KillAfterTest(t, agent.Process)
	_, err = bed.Azure.Announce(azure.Announcement{Type: azure.Preempt, Resources: []string{pool.ResourceName(0)}, Notice: azure.MinimumNotice(azure.Preempt)})
	check(t, err)
	_, err = bed.AwaitEvent(ctx, pool.NodeName(0), "Drained")
	check(t, err)
	name, err := bed.RunSlipway(ctx, t, "retire", pool.NodeName(1), "-o", "name")
	check(t, err)
	_, name, _ = strings.Cut(strings.TrimSpace(name), "/")

	text, err := bed.RunSlipway(ctx, t, "report", "--since", "10m", "-o", "json")
	check(t, err)
	var data report.Report
	check(t, json.Unmarshal([]byte(text), &data))
	find := func(node string) (found report.NodeRecords) {
		for _, n := range data.Nodes {
			if n.Node == node {
				found = n
			}
		}
		return found
	}
	if noticed, retired := find(pool.NodeName(0)), find(pool.NodeName(1)); noticed.Events < 2 || noticed.Warnings == 0 || retired.Retirements != 1 {
		t.Errorf("the node with a notice: %+v; the node with a retirement: %+v", noticed, retired)
	}

	file := filepath.Join(t.TempDir(), "report.html")
	_, err = bed.RunSlipway(ctx, t, "report", "--since", "10m", "-o", file)
	check(t, err)
	page := openAndCheck(t, file, view{390, "screen", "light"}, view{1440, "screen", "dark"}, view{1440, "print", "light"})
	var is struct {
		Rows map[string][]string
		Text string
	}
	page.Eval(`({rows: Object.fromEntries([...document.querySelectorAll("[aria-labelledby=overview] tbody")].map(b =>
		[b.querySelector("th").innerText, [...b.querySelectorAll("tr")].map(r => r.querySelector("td").innerText)])), text: document.body.innerText})`, &is)
	if rows := is.Rows[pool.NodeName(1)]; len(rows) == 0 || rows[0] != "NodeRetirement "+name {
		t.Errorf("rows of the retired node: %q", rows)
	}
	if rows := is.Rows[pool.NodeName(0)]; len(rows) != 1 || !strings.HasSuffix(rows[0], " Events") {
		t.Errorf("rows of the drained node: %q", rows)
	}
	for _, want := range []string{
		"NoticeReceived", "no pod of the manager was found, so its log is missing",
		"no pod of the agent was found on", pool.NodeName(0),
	} {
		if !strings.Contains(is.Text, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
}
