package nodegroup

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	openapierrors "k8s.io/kube-openapi/pkg/validation/errors"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kube-openapi/pkg/validation/strfmt"
	"k8s.io/kube-openapi/pkg/validation/validate"
	"sigs.k8s.io/yaml"

	"github.com/slipway-dev/slipway/api/crds"
	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// ValidateSchema validates a NodeGroup against the schema of the CustomResourceDefinition, with the library that the
// API server uses. It does not evaluate the definition's CEL rules; [Validate] makes the same checks. Each error begins
// with the field. Unknown fields are ignored.
func ValidateSchema(object map[string]any) (errs []error) {
	schema, err := loadGroupSchema()
	if err != nil {
		return []error{err}
	}
	// A validator keeps its results, so that each can be used once.
	found := validate.NewSchemaValidator(schema, nil, "", strfmt.Default).Validate(object)
	for _, err := range found.Errors {
		errs = append(errs, formatSchemaError(err))
	}
	return errs
}

// ApplyDefaults sets the defaults of the CustomResourceDefinition in a NodeGroup, as the API server does.
func ApplyDefaults(object map[string]any) error {
	schema, err := loadGroupSchema()
	if err != nil {
		return err
	}
	applyDefaults(object, schema)
	return nil
}

// applyDefaults sets the defaults of missing fields. It does this only in objects that exist: a missing object stays
// missing, even if its fields have defaults.
func applyDefaults(value any, schema *spec.Schema) {
	switch value := value.(type) {
	case map[string]any:
		for name := range schema.Properties {
			field := schema.Properties[name]
			if _, there := value[name]; !there && field.Default != nil {
				value[name] = runtime.DeepCopyJSONValue(field.Default)
			}
			applyDefaults(value[name], &field)
		}
	case []any:
		if schema.Items == nil || schema.Items.Schema == nil {
			return
		}
		for i := range value {
			applyDefaults(value[i], schema.Items.Schema)
		}
	}
}

// bodyPrefix is the text that the library writes in errors about a whole object.
const bodyPrefix = " in body "

// formatSchemaError returns the library's error in Slipway's form: it begins with the field and the value.
func formatSchemaError(err error) error {
	wrong, ok := errors.AsType[*openapierrors.Validation](err)
	if !ok {
		return err
	}
	want := strings.TrimPrefix(strings.TrimPrefix(err.Error(), wrong.Name), bodyPrefix)
	value, unprintable := json.Marshal(wrong.Value)
	if wrong.Value == nil || unprintable != nil {
		return fmt.Errorf("%s: %s", wrong.Name, want)
	}
	return fmt.Errorf("%s: %s: %s", wrong.Name, value, want)
}

// loadGroupSchema returns the schema of a NodeGroup from the CustomResourceDefinition.
var loadGroupSchema = sync.OnceValues(func() (*spec.Schema, error) {
	const file = "slipway.dev_nodegroups.yaml"
	raw, err := crds.Files.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var definition struct {
		Spec struct {
			Versions []struct {
				Name   string `json:"name"`
				Schema struct {
					OpenAPIV3Schema spec.Schema `json:"openAPIV3Schema"`
				} `json:"schema"`
			} `json:"versions"`
		} `json:"spec"`
	}
	if err := yaml.Unmarshal(raw, &definition); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	for i := range definition.Spec.Versions {
		if v := &definition.Spec.Versions[i]; v.Name == v1alpha1.GroupVersion.Version {
			return &v.Schema.OpenAPIV3Schema, nil
		}
	}
	return nil, fmt.Errorf("%s: has no version %s", file, v1alpha1.GroupVersion.Version)
})
