package controlplane

import (
	"os"
	"testing"
	"time"
)

func TestMain(m *testing.M) { os.Exit(Main(m)) }

func TestBootTime(t *testing.T) {
	begun := time.Now()
	c := ForTest(t, Options{Nodes: AKSPool{Name: "spot"}.Nodes(20)})
	t.Logf("booted in %s", time.Since(begun))
	info, err := c.Client().Discovery().ServerVersion()
	if err != nil {
		t.Fatal(err)
	}
	t.Log(info)
}
