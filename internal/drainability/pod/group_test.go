package pod

import (
	"testing"

	"github.com/slipway-dev/slipway/internal/testing/check"
)

func TestDisruptionModeOfEachVersionIsParsed(t *testing.T) {
	for raw, want := range map[string]DisruptionMode{
		`{"all":{}}`:            DisruptionModeAll,
		` {"single":{}} `:       DisruptionModeSingle,
		`"PodGroup"`:            DisruptionModeAll, // Kubernetes 1.36
		`"Pod"`:                 DisruptionModeSingle,
		``:                      DisruptionModeSingle,
		`null`:                  DisruptionModeSingle,
		`{}`:                    DisruptionModeUnknown,
		`{"half":{}}`:           DisruptionModeUnknown,
		`"Half"`:                DisruptionModeUnknown,
		`[7]`:                   DisruptionModeUnknown,
		`{"all":{},"later":{}}`: DisruptionModeAll,
	} {
		check.Is(t, want, ParseDisruptionMode([]byte(raw)), raw)
	}
}

func TestOnlyAPodGroupWithModeSingleIsNoGroup(t *testing.T) {
	replica := map[string]string{lwsName: "llm", lwsGroupKey: "k"}
	gang, leader := Group{PodGroup, "gang"}, Group{LeaderWorkerSet, "llm/k"}
	for _, c := range []struct {
		labels   map[string]string
		podGroup string
		mode     DisruptionMode
		want     Group
	}{
		{nil, "gang", DisruptionModeAll, gang},
		{nil, "gang", DisruptionModeUnknown, gang},
		{nil, "gang", DisruptionModeSingle, Group{}},
		{replica, "gang", DisruptionModeSingle, leader},
		{replica, "gang", DisruptionModeAll, gang},
		{replica, "", DisruptionModeSingle, leader},
		{nil, "", DisruptionModeUnknown, Group{}},
	} {
		check.Is(t, c.want, FindGroup(c.labels, c.podGroup).ResolveMode(c.labels, c.mode), c)
	}
}
