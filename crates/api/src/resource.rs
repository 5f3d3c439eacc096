//! What makes a type with `metadata`, `spec` and `status` an object that `kube::Api` can carry.
//!
//! The derive of kube would generate the CRD as well; ours is written by hand ([`crate::schema`]), so only this is left.

/// Implements `kube::Resource` and `Serialize` (with `apiVersion` and `kind`) for a type with the fields `metadata`, `spec`
/// and `status: Option<_>`. The type derives `Deserialize` itself. `spec` may be declared `optional`, then it is an
/// `Option` too.
#[macro_export]
macro_rules! api_resource {
    ($name:ident, $scope:ident, $group:expr, $version:expr, $plural:expr $(, $spec:ident)?) => {
        impl ::kube::Resource for $name {
            type DynamicType = ();
            type Scope = ::k8s_openapi::$scope;

            fn kind(_: &()) -> ::std::borrow::Cow<'_, str> {
                stringify!($name).into()
            }

            fn group(_: &()) -> ::std::borrow::Cow<'_, str> {
                $group.into()
            }

            fn version(_: &()) -> ::std::borrow::Cow<'_, str> {
                $version.into()
            }

            fn plural(_: &()) -> ::std::borrow::Cow<'_, str> {
                $plural.into()
            }

            fn meta(&self) -> &::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                &self.metadata
            }

            fn meta_mut(&mut self) -> &mut ::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                &mut self.metadata
            }
        }

        impl ::serde::Serialize for $name {
            fn serialize<S: ::serde::Serializer>(&self, serializer: S) -> ::std::result::Result<S::Ok, S::Error> {
                use ::serde::ser::SerializeMap;
                let mut object = serializer.serialize_map(None)?;
                object.serialize_entry("apiVersion", &<Self as ::kube::Resource>::api_version(&()))?;
                object.serialize_entry("kind", stringify!($name))?;
                object.serialize_entry("metadata", &self.metadata)?;
                $crate::api_resource!(@spec object, self $(, $spec)?);
                if let Some(status) = &self.status {
                    object.serialize_entry("status", status)?;
                }
                object.end()
            }
        }
    };
    (@spec $object:ident, $self:ident) => {
        $object.serialize_entry("spec", &$self.spec)?;
    };
    (@spec $object:ident, $self:ident, optional) => {
        if let Some(spec) = &$self.spec {
            $object.serialize_entry("spec", spec)?;
        }
    };
}
