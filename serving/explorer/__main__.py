"""A page that captions pictures, finds photographs while you type, and shows the model's inside.

Examples:

    python -m serving.explorer --model lite0 --photos ~/Pictures
    python -m serving.explorer --server 127.0.0.1:8500 --photos flickr8k/images
    python -m serving.explorer --host 0.0.0.0 --token "a long secret"

With --server, TF Serving or serving.local answers; its index is searched, and --photos is the
folder that holds the images of the index. Otherwise a model answers in this process, by default the
pretrained one, with the index `mrnn_index` beside it where there is one; --photos is indexed in the
background, and without it the page asks for a folder in your home. With both --server and --model,
which must be the same model, the server answers and the folder is indexed here.

The page is open to this machine alone unless --host says otherwise. Pictures that are dropped on it
are kept in memory only. Ctrl-C ends it.
"""

from mrnn_tf import program
from serving.explorer.options import ExplorerOptions

if __name__ == "__main__":  # before all other imports: --help needs no TensorFlow
    program.main("serving.explorer.server:explore", ExplorerOptions)
