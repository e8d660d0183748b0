package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"

	provenance "github.com/in-toto/attestation/go/predicates/provenance/v1"
	intoto "github.com/in-toto/attestation/go/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"
)

const (
	// buildType is the documentation of the parameters.
	buildType = homepage + "/blob/main/docs/release.md#provenance"
	// unsignedBuilder is the builder of an unsigned statement.
	unsignedBuilder = homepage + "/blob/main/docs/release.md#unsigned"
)

func (r *release) provenanceName() string { return r.fileName("slipway") + ".provenance.json" }

// writeProvenance writes the provenance of the subjects as an in-toto statement in the format SLSA provenance v1
// (https://slsa.dev/spec/v1.0/provenance). The statement says that it is unsigned. It contains no times, so that it
// is reproducible.
func (r *release) writeProvenance(subjects []subject) error {
	external, err := structpb.NewStruct(map[string]any{
		"version": r.source.Version,
		"source":  "git+" + homepage + "@" + r.source.Commit,
		"targets": targetNames(r.targets),
	})
	if err != nil {
		return err
	}
	internal, err := structpb.NewStruct(map[string]any{"signed": false, "sourceModified": r.source.Modified})
	if err != nil {
		return err
	}
	predicate := &provenance.Provenance{
		BuildDefinition: &provenance.BuildDefinition{
			BuildType: buildType, ExternalParameters: external, InternalParameters: internal,
			ResolvedDependencies: []*intoto.ResourceDescriptor{{
				Uri: "git+" + homepage + "@" + r.source.Commit, Digest: map[string]string{"gitCommit": r.source.Commit},
			}},
		},
		RunDetails: &provenance.RunDetails{
			Builder: &provenance.Builder{Id: unsignedBuilder, Version: map[string]string{"go": r.source.Toolchain}},
		},
	}
	if err := predicate.Validate(); err != nil {
		return fmt.Errorf("provenance: %w", err)
	}
	statement := &intoto.Statement{Type: intoto.StatementTypeUri, PredicateType: "https://slsa.dev/provenance/v1"}
	for _, s := range subjects {
		statement.Subject = append(statement.Subject, &intoto.ResourceDescriptor{
			Name: s.Name, Digest: map[string]string{"sha256": s.SHA256},
		})
	}
	text, err := protojson.Marshal(predicate)
	if err != nil {
		return err
	}
	statement.Predicate = &structpb.Struct{}
	if err := protojson.Unmarshal(text, statement.Predicate); err != nil {
		return err
	}
	if err := statement.Validate(); err != nil {
		return fmt.Errorf("provenance: %w", err)
	}
	if text, err = protojson.Marshal(statement); err != nil {
		return err
	}
	// protojson adds random spaces, so that the output is formatted again.
	var pretty bytes.Buffer
	if err := json.Indent(&pretty, text, "", "  "); err != nil {
		return err
	}
	return os.WriteFile(r.filePath(r.provenanceName()), append(pretty.Bytes(), '\n'), 0o644) //nolint:gosec // public
}

func targetNames(targets []target) []any {
	names := make([]any, len(targets))
	for i, t := range targets {
		names[i] = t.String()
	}
	return names
}
