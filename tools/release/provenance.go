package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	provenance "github.com/in-toto/attestation/go/predicates/provenance/v1"
	intoto "github.com/in-toto/attestation/go/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"
)

const (
	// buildTypePage documents the parameters of the build, in the source repository.
	buildTypePage = "/blob/main/docs/release.md#provenance"
	// builderPage documents the builder: make release, on a machine that the release does not describe.
	builderPage = "/blob/main/docs/release.md#builder"
	// provenanceType is the predicate type of the statement.
	provenanceType = "https://slsa.dev/provenance/v1"
)

func provenanceFile(version string) string { return "slipway_" + version + ".provenance.json" }

// writeProvenance writes the provenance of the subjects as an in-toto statement in the format SLSA provenance v1
// (https://slsa.dev/spec/v1.0/provenance). It contains no times, so that it is reproducible.
func (r *release) writeProvenance(subjects []subject) error {
	repository := "git+" + r.repositoryURL() + "@" + r.source.Commit
	external, err := structpb.NewStruct(map[string]any{
		"version": r.source.Version,
		"source":  repository,
		"targets": asAny(targetNames(r.targets)),
		// Both are in charts, manifests and package files, and in no binary or image.
		"registry": r.registry, "downloadURL": r.download,
	})
	if err != nil {
		return err
	}
	internal, err := structpb.NewStruct(map[string]any{"sourceModified": r.source.Modified})
	if err != nil {
		return err
	}
	predicate := &provenance.Provenance{
		BuildDefinition: &provenance.BuildDefinition{
			BuildType: r.repositoryURL() + buildTypePage, ExternalParameters: external, InternalParameters: internal,
			ResolvedDependencies: []*intoto.ResourceDescriptor{{
				Uri: repository, Digest: map[string]string{"gitCommit": r.source.Commit},
			}},
		},
		RunDetails: &provenance.RunDetails{
			Builder: &provenance.Builder{Id: r.repositoryURL() + builderPage, Version: map[string]string{"go": r.source.Toolchain}},
		},
	}
	if err := predicate.Validate(); err != nil {
		return fmt.Errorf("provenance: %w", err)
	}
	statement := &intoto.Statement{Type: intoto.StatementTypeUri, PredicateType: provenanceType}
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
	text, err = formatStatement(statement)
	if err != nil {
		return err
	}
	return os.WriteFile(r.filePath(provenanceFile(r.source.Version)), text, 0o644) //nolint:gosec // public
}

// formatStatement returns a statement as JSON. protojson adds random spaces, so it formats the text again.
func formatStatement(statement *intoto.Statement) ([]byte, error) {
	text, err := protojson.Marshal(statement)
	if err != nil {
		return nil, err
	}
	var pretty bytes.Buffer
	if err := json.Indent(&pretty, text, "", "  "); err != nil {
		return nil, err
	}
	return append(pretty.Bytes(), '\n'), nil
}

// readProvenance returns the provenance of a release. If the release was made from a modified work tree, it returns an error,
// because nobody could make this release again.
func readProvenance(dist, version string) (*intoto.Statement, error) {
	file := filepath.Join(dist, provenanceFile(version))
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	statement := &intoto.Statement{}
	if err := protojson.Unmarshal(text, statement); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	value := structpb.NewStructValue(statement.Predicate)
	for _, key := range []string{"buildDefinition", "internalParameters", "sourceModified"} {
		value = value.GetStructValue().GetFields()[key]
	}
	if modified, ok := value.GetKind().(*structpb.Value_BoolValue); !ok || modified.BoolValue {
		return nil, fmt.Errorf("%s: the release is of a work tree that differs from its commit: commit the changes and make the release again "+
			"without -allow-modified", file)
	}
	return statement, nil
}

// formatProvenance returns the provenance of a release as a statement about one image or chart in a registry.
func formatProvenance(release *intoto.Statement, subject name.Digest) ([]byte, error) {
	hash, err := v1.NewHash(subject.DigestStr())
	if err != nil {
		return nil, err
	}
	return formatStatement(&intoto.Statement{
		Type: release.Type, PredicateType: release.PredicateType, Predicate: release.Predicate,
		Subject: []*intoto.ResourceDescriptor{{Name: subject.Context().Name(), Digest: map[string]string{hash.Algorithm: hash.Hex}}},
	})
}

func asAny(list []string) []any {
	result := make([]any, len(list))
	for i, s := range list {
		result[i] = s
	}
	return result
}
